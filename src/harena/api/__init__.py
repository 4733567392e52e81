"""The arena over HTTP: the contract's paths, /v1, live events and the page. `app.create_app` puts it together."""
