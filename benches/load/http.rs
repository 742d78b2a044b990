//! HTTP/1.1 requests over one connection that stays open.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

pub struct Http {
    address: String,
    stream: BufReader<TcpStream>,
}

impl Http {
    pub async fn connect(address: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|e| format!("{address}: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Self {
            address: address.to_owned(),
            stream: BufReader::new(stream),
        })
    }

    /// Sends a PUT and takes its answer; one without success is an error.
    pub async fn put(&mut self, path: &str, body: &str) -> Result<(), String> {
        let (address, len) = (&self.address, body.len());
        let request = format!(
            "PUT {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}"
        );
        let answered = self.exchange(&request).await;
        answered.map_err(|error| format!("PUT {path}: {error}"))
    }

    async fn exchange(&mut self, request: &str) -> Result<(), String> {
        let broken = |e: std::io::Error| e.to_string();
        self.stream
            .write_all(request.as_bytes())
            .await
            .map_err(broken)?;
        let mut line = String::new();
        self.stream.read_line(&mut line).await.map_err(broken)?;
        let success = line
            .split(' ')
            .nth(1)
            .is_some_and(|status| status.starts_with('2'));
        let status = line.trim().to_owned();
        let mut len = 0;
        loop {
            line.clear();
            let read = self.stream.read_line(&mut line).await.map_err(broken)?;
            let header = line.trim_end();
            if read == 0 || header.is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                len = value
                    .trim()
                    .parse()
                    .map_err(|_| format!("content-length {value}"))?;
            }
        }
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body).await.map_err(broken)?;
        match success {
            true => Ok(()),
            false => Err(format!("{status} {}", String::from_utf8_lossy(&body))),
        }
    }
}
