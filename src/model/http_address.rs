//! Addresses of HTTP servers: what key sets are fetched from, and what checks get.

use std::net::IpAddr;

/// The parts of an `http://` or `https://` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAddress {
    /// Whether it is `https://`.
    pub tls: bool,
    /// Host: a name, or an IP address without brackets.
    pub host: String,
    /// Port; 80 or 443 unless given.
    pub port: u16,
    /// Path without query; at least `/`.
    pub path: String,
}

impl HttpAddress {
    /// Takes an address apart; `None` if it isn't one with a host.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (tls, rest) = match text.split_once("://")? {
            ("http", rest) => (false, rest),
            ("https", rest) => (true, rest),
            _ => return None,
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let authority = authority
            .rsplit_once('@')
            .map_or(authority, |(_, host)| host);
        let (host, port) = match authority.strip_prefix('[') {
            Some(bracketed) => {
                let (host, rest) = bracketed.split_once(']')?;
                (host, rest.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            None | Some("") => 80 + 363 * u16::from(tls),
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        };
        if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return None;
        }
        let path = rest
            .split(['?', '#'])
            .next()
            .filter(|path| !path.is_empty());
        Some(Self {
            tls,
            host: host.to_owned(),
            port,
            path: path.unwrap_or("/").to_owned(),
        })
    }

    /// Whether the host is an IP address.
    #[must_use]
    pub fn is_ip(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let parsed = |text| HttpAddress::parse(text).map(|a| (a.tls, a.host, a.port, a.path));
        let some = |tls, host: &str, port, path: &str| Some((tls, host.into(), port, path.into()));
        assert_eq!(parsed("http://a"), some(false, "a", 80, "/"));
        assert_eq!(
            parsed("https://a.b/c/d?e#f"),
            some(true, "a.b", 443, "/c/d")
        );
        assert_eq!(parsed("http://u:p@a:8080?x"), some(false, "a", 8080, "/"));
        assert_eq!(parsed("http://[::1]:81/x"), some(false, "::1", 81, "/x"));
        assert_eq!(parsed("http://[::1]"), some(false, "::1", 80, "/"));
        for bad in [
            "",
            "a",
            "ftp://a",
            "http://",
            "http://:80/",
            "http://a:0/",
            "http://a:b/",
            "http://[::1",
            "http://a b/",
        ] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
