"""The arena over HTTP: the contract's paths, /v1, live events and the page.

`app.create_app` puts it together, `server` runs it (`harena up`). `http` has what every request passes, `routes` the
paths, `answers` what is sent, `auth` who may see and do what, `web` the page. The fields of answers are in
`harena.schema`.
"""
