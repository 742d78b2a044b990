# The versions of "api" are parts of its instances. If no instance of one is left, the other takes its requests.
Kind           = "service-resolver"
Name           = "api"
DefaultSubset  = "v1"
ConnectTimeout = "2s"
Subsets {
  v1 {
    Filter = "Service.Meta.version == v1"
  }
  v2 {
    Filter = "Service.Meta.version == v2"
  }
}
Failover {
  v1 {
    ServiceSubset = "v2"
  }
  v2 {
    ServiceSubset = "v1"
  }
}
