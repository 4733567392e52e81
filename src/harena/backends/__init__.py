"""Where boxes are made. One package per backend; each is reached by name, through the registry in `harena.sandbox`."""
