"""The components that Flower loads, in simulation and in deployment: the server app, the client app, and a site's
policy."""
