# The application "admin", which api's router leads to.
service {
  name = "admin"
  port = 8183
  connect {
    sidecar_service {
      port = 21013
      checks = [
        {
          name     = "Connect Sidecar Listening"
          tcp      = "127.0.0.1:21013"
          interval = "1s"
        },
        {
          name          = "Connect Sidecar Aliasing admin"
          alias_service = "admin"
        }
      ]
    }
  }
}
