# All services speak HTTP unless they say otherwise, so that requests can be routed.
Kind = "proxy-defaults"
Name = "global"
Config {
  protocol = "http"
}
