# One in five requests for "api" goes to the new version, which is told so; and so is the caller.
Kind = "service-splitter"
Name = "api"
Splits = [
  {
    Weight        = 80
    ServiceSubset = "v1"
  },
  {
    Weight        = 20
    ServiceSubset = "v2"
    RequestHeaders {
      Set {
        x-canary = "yes"
      }
    }
    ResponseHeaders {
      Set {
        x-served-by = "the canary"
      }
    }
  }
]
