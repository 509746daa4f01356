"""What a run leaves behind: trained models for prediction, their evaluation at the sites, and its intervals."""
