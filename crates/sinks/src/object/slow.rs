//! How long a request to a store may take: longer, the more bytes it has, so that a slow uplink can finish a part.
//!
//! While bytes of a request are on their way, the kernel ends a connection whose peer acknowledges none of them (`TCP_USER_TIMEOUT`).
//! But the client does not show when the peer has acknowledged the last one, which is when the time for the response begins. So the
//! limit for a whole request includes the time that its bytes take at [`RATE_MIN`].

use std::{io, time::Duration};

use object_store::client::{HttpError, HttpErrorKind, HttpResponse};
use tokio::time;

/// Bytes per second of the slowest uplink over which a part arrives.
const RATE_MIN: usize = 16 << 10;

/// The limit of a request with a body of this size.
pub(super) fn limit(timeout: Duration, bytes: usize) -> Duration {
    timeout + Duration::from_secs((bytes / RATE_MIN) as u64)
}

/// Waits for the response to a request with a body of this size.
pub(super) async fn within(
    timeout: Duration,
    bytes: usize,
    response: impl Future<Output = Result<HttpResponse, HttpError>>,
) -> Result<HttpResponse, HttpError> {
    let limit = limit(timeout, bytes);
    match time::timeout(limit, response).await {
        Ok(response) => response,
        Err(_) => {
            let text = format!("no response within {limit:?}");
            let error = io::Error::new(io::ErrorKind::TimedOut, text);
            Err(HttpError::new(HttpErrorKind::Timeout, error))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
    };

    use super::*;
    use crate::object::{
        cloud::Objects,
        connect::{Auth, Bucket, Scheme, connect},
        requests::Http,
    };
    use object_store::{ObjectStoreExt, PutPayload, path::Path};

    /// Reads one request at about 64 KiB per 100 ms, and answers it.
    fn serve(listener: &TcpListener, requests: usize) {
        for _ in 0..requests {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            let (_, length) = head.split_once("content-length: ").unwrap();
            let mut left: usize = length.lines().next().unwrap().parse().unwrap();
            let mut block = vec![0; 64 << 10];
            while left > 0 {
                let now = left.min(block.len());
                stream.read_exact(&mut block[..now]).unwrap();
                left -= now;
                thread::sleep(Duration::from_millis(100));
            }
            let answer = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
        }
    }

    #[tokio::test]
    async fn a_part_arrives_over_a_slow_line_although_it_takes_longer_than_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || serve(&listener, 1));
        let bucket = Bucket {
            scheme: Scheme::S3,
            name: "b".to_owned(),
            endpoint: Some(format!("http://{address}")),
            region: Some("r".to_owned()),
            auth: Auth {
                access_key: Some("a".to_owned()),
                secret_key: Some(millstream_config::Secret::new("s")),
                ..Auth::default()
            },
        };
        let http = Http {
            timeout: Duration::from_secs(1),
            part_bytes: 5 << 20,
            tls: None,
            reporter: millstream_pipeline::report::Reporter::new("out"),
        };
        let objects: std::sync::Arc<dyn Objects> = connect(&bucket, &http).unwrap();
        let payload = PutPayload::from(vec![0; 2 << 20]);
        objects.put(&Path::from("a"), payload).await.unwrap();
        server.join().unwrap();
    }
}
