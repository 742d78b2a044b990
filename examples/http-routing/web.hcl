# The application "web" and its sidecar. Whatever web sends to port 9180 goes to "api", as the entries in this folder say.
service {
  name = "web"
  port = 8180
  connect {
    sidecar_service {
      port = 21010
      proxy {
        upstreams = [
          {
            destination_name = "api"
            local_bind_port  = 9180
          }
        ]
      }
    }
  }
}
