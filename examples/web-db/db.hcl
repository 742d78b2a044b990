# The application "db" and its sidecar. Others reach it only through the sidecar, at port 21001.
service {
  name = "db"
  port = 8081
  connect {
    sidecar_service {
      port = 21001
      # Without checks of its own a sidecar gets these two, with an interval of 10s.
      checks = [
        {
          name     = "Connect Sidecar Listening"
          tcp      = "127.0.0.1:21001"
          interval = "1s"
        },
        {
          name          = "Connect Sidecar Aliasing db"
          alias_service = "db"
        }
      ]
    }
  }
}
