# The application "web" and its sidecar. The sidecar opens port 9191 for it: whatever web sends there reaches an instance
# of "db" over mutual TLS.
service {
  name = "web"
  port = 8080
  connect {
    sidecar_service {
      port = 21000
      proxy {
        upstreams = [
          {
            destination_name = "db"
            local_bind_port  = 9191
          }
        ]
      }
    }
  }
}
