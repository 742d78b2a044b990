# Which requests for "api" go where: the first route that matches decides, and all others go by the splitter.
Kind = "service-router"
Name = "api"
Routes = [
  {
    # Another service, which sees /admin/users as /users.
    Match {
      HTTP {
        PathPrefix = "/admin/"
      }
    }
    Destination {
      Service       = "admin"
      PrefixRewrite = "/"
    }
  },
  {
    # Who asks for the new version gets it.
    Match {
      HTTP {
        Header = [
          {
            Name  = "x-version"
            Exact = "2"
          }
        ]
      }
    }
    Destination {
      ServiceSubset = "v2"
    }
  },
  {
    # A search may take a second, and is tried again twice.
    Match {
      HTTP {
        PathExact = "/search"
        Methods   = ["GET"]
      }
    }
    Destination {
      RequestTimeout       = "1s"
      NumRetries           = 2
      RetryOnStatusCodes   = [503]
    }
  }
]
