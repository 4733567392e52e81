"""Images on disk: `image_store` (names and records), `layers` (folders of layers), `leases` (images that are in use),
`archives` (images from files) and `compress` (streams of layers)."""
