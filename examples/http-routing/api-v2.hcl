# Version 2 of "api". The resolver tells versions by this label.
service {
  id   = "api-v2"
  name = "api"
  port = 8182
  meta {
    version = "v2"
  }
  check {
    name     = "api-v2 answers"
    http     = "http://127.0.0.1:8182/health"
    interval = "200ms"
  }
  connect {
    sidecar_service {
      port = 21012
      checks = [
        {
          name     = "Connect Sidecar Listening"
          tcp      = "127.0.0.1:21012"
          interval = "1s"
        },
        {
          name          = "Connect Sidecar Aliasing api-v2"
          alias_service = "api-v2"
        }
      ]
    }
  }
}
