# Version 1 of "api". The resolver tells versions by this label.
service {
  id   = "api-v1"
  name = "api"
  port = 8181
  meta {
    version = "v1"
  }
  check {
    name     = "api-v1 answers"
    http     = "http://127.0.0.1:8181/health"
    interval = "200ms"
  }
  connect {
    sidecar_service {
      port = 21011
      checks = [
        {
          name     = "Connect Sidecar Listening"
          tcp      = "127.0.0.1:21011"
          interval = "1s"
        },
        {
          name          = "Connect Sidecar Aliasing api-v1"
          alias_service = "api-v1"
        }
      ]
    }
  }
}
