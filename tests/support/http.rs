//! A small HTTP/1.1 client: one request per connection, or many on one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// What a server answered.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Header lines, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

impl Response {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// It isn't JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

/// `GET path`.
///
/// # Errors
/// The server can't be reached or doesn't speak HTTP/1.1.
pub fn get(address: &str, path: &str) -> io::Result<Response> {
    request(address, "GET", path, &[], "")
}

/// Any request. A `Host` header may be among `headers`.
///
/// # Errors
/// The server can't be reached, doesn't answer within ten seconds, or doesn't speak HTTP/1.1.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Response> {
    let mut stream = connect(address)?;
    write_request(
        &mut stream,
        address,
        method,
        path,
        &with_close(headers),
        body,
    )?;
    read_response(&mut BufReader::new(stream), method == "HEAD")
}

/// A connection that is kept for the next request.
pub struct Client {
    address: String,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    /// A client of an `address:port`, which isn't connected yet.
    pub fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            connection: None,
        }
    }

    /// Any request, on the connection of the last one if the server has kept it.
    ///
    /// # Errors
    /// As of [`request`]; also if the server has closed the connection in the meantime without having said that it would.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Response> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(connect(&self.address)?),
        };
        write_request(
            connection.get_mut(),
            &self.address,
            method,
            path,
            headers,
            body,
        )?;
        let response = read_response(&mut connection, method == "HEAD")?;
        if response.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(response)
    }

    /// `GET path` with headers.
    ///
    /// # Errors
    /// As of [`Client::request`].
    pub fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> io::Result<Response> {
        self.request("GET", path, headers, "")
    }
}

fn with_close<'a>(headers: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![("Connection", "close")];
    all.extend(headers);
    all
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let target = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("no address"))?;
    let patience = Duration::from_secs(10);
    let stream = TcpStream::connect_timeout(&target, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

fn write_request(
    stream: &mut TcpStream,
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<()> {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n",
        body.len()
    );
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())
}

fn read_response(reader: &mut impl BufRead, no_body: bool) -> io::Result<Response> {
    let line = read_line(reader)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| io::Error::other(format!("{line:?} is no status line")))?;
    let headers = read_headers(reader)?;
    let find = |name: &str| {
        headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    };
    let mut body = Vec::new();
    if no_body {
    } else if find("transfer-encoding") == Some("chunked") {
        loop {
            let line = read_line(reader)?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(size, 16)
                .map_err(|_| io::Error::other(format!("{line:?} is no chunk size")))?;
            if size == 0 {
                break;
            }
            read_exactly(reader, size, &mut body)?;
            read_line(reader)?;
        }
    } else if let Some(length) = find("content-length") {
        let length = length
            .parse()
            .map_err(|_| io::Error::other(format!("{length:?} is no length")))?;
        read_exactly(reader, length, &mut body)?;
    } else {
        reader.read_to_end(&mut body)?;
    }
    Ok(Response {
        status,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// Reads header lines up to the empty one; names in lower case.
pub(super) fn read_headers(reader: &mut impl BufRead) -> io::Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        if line.is_empty() {
            return Ok(headers);
        }
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| io::Error::other(format!("{line:?} is no header")))?;
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
}

/// Reads a line without its end; an error at the end of the stream.
pub(super) fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(line)
}

pub(super) fn read_exactly(
    reader: &mut impl Read,
    length: u64,
    into: &mut Vec<u8>,
) -> io::Result<()> {
    let before = into.len();
    reader.take(length).read_to_end(into)?;
    if (into.len() - before) as u64 == length {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
