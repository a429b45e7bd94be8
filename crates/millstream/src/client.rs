//! A client of a running instance: one request per connection, with timeouts and a limit on the answer.
//!
//! The client speaks HTTP/1.0. In this version, the end of the connection ends the answer, and answers are never chunked.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use millstream_config::Secret;
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};

/// The timeout of connecting, and of each read.
const PATIENCE: Duration = Duration::from_secs(5);
/// The timeout of each read of the answer to a change. It is longer than [`PATIENCE`], because a reload may open channels and end nodes
/// before it answers.
const PATIENCE_CHANGE: Duration = Duration::from_secs(60);
/// The largest answer in bytes: enough for several thousand nodes.
const ANSWER_MAX: u64 = 64 << 20;
/// The longest head of an answer.
const HEAD_MAX: u64 = 64 << 10;

/// The address of an instance, and how to connect to it.
#[derive(Clone)]
pub struct Client {
    /// `HOST:PORT`.
    pub address: String,
    /// The TLS configuration; `None` for no TLS.
    pub tls: Option<Arc<ClientConfig>>,
    /// The token to present.
    pub token: Option<Secret>,
}

/// An answer whose body is not read yet.
pub struct Answer {
    /// The status.
    pub code: u16,
    /// The body, which ends with the connection.
    pub body: Box<dyn BufRead>,
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.tls.as_ref().map_or("", |_| "https://");
        write!(f, "{scheme}{}", self.address)
    }
}

impl Client {
    /// Sends a request without a body. Returns the status and the body of the answer.
    pub fn request(&self, method: &str, path: &str) -> io::Result<(u16, String)> {
        let answer = self.open(method, path)?;
        let mut body = Vec::new();
        answer.body.take(ANSWER_MAX).read_to_end(&mut body)?;
        Ok((answer.code, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Sends a request without a body. Each read of the answer has a timeout of five seconds, or of a minute if the method is not GET.
    pub fn open(&self, method: &str, path: &str) -> io::Result<Answer> {
        let mut stream = self.connect(match method {
            "GET" => PATIENCE,
            _ => PATIENCE_CHANGE,
        })?;
        let token = match &self.token {
            Some(token) => format!("Authorization: Bearer {}\r\n", token.expose()),
            None => String::new(),
        };
        let host = &self.address;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {host}\r\n{token}Content-Length: 0\r\n\r\n"
        )?;
        stream.flush()?;
        let mut body = BufReader::new(stream);
        let code = head(&mut body)?;
        Ok(Answer {
            code,
            body: Box::new(body),
        })
    }

    fn connect(&self, patience: Duration) -> io::Result<Box<dyn Stream>> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "it is no address");
        for socket in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&socket, PATIENCE) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(patience))?;
                    return self.secure(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn secure(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let name = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(name.to_owned()).map_err(|why| wrong(why.to_string()))?;
        let connection = ClientConnection::new(tls.clone(), name);
        let connection = connection.map_err(|why| wrong(why.to_string()))?;
        Ok(Box::new(StreamOwned::new(connection, stream)))
    }
}

/// Reads the head of an answer (a status line, headers, an empty line), and returns the status.
fn head(answer: &mut impl BufRead) -> io::Result<u16> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it does not answer as HTTP");
    let mut lines = answer.take(HEAD_MAX);
    let mut line = Vec::new();
    let mut code = None;
    loop {
        line.clear();
        lines.read_until(b'\n', &mut line)?;
        let Some(text) = line.strip_suffix(b"\n") else {
            return Err(wrong());
        };
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        match code {
            None => code = Some(status(text).ok_or_else(wrong)?),
            Some(code) if text.is_empty() => return Ok(code),
            Some(_) => {}
        }
    }
}

/// The status in a status line.
fn status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::head;

    #[test]
    fn an_answer_is_a_status_and_a_body() {
        let mut answer = &b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}"[..];
        assert_eq!(head(&mut answer).unwrap(), 503);
        let mut body = String::new();
        answer.read_to_string(&mut body).unwrap();
        assert_eq!(body, "{}");
        let endless = "HTTP/1.1 200 OK\r\n".repeat(100_000);
        for broken in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.é\r\n\r\n",
            &endless,
        ] {
            assert!(head(&mut broken.as_bytes()).is_err());
        }
    }
}
