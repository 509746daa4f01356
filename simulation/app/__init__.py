"""What Flower loads, in simulation and in deployment: the server app, the client app, and the rules of a site."""
