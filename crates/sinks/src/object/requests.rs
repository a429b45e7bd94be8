//! Sends the requests of a store's client.
//!
//! The client of an object store lives as long as the sink. So its connections are made anew from time to time: after a minute, so
//! that the name of the store is looked up again, and when the files of the option `tls` have changed.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use millstream_net::ClientTls;
use millstream_pipeline::report::Reporter;
use object_store::{
    ClientOptions, Error,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpService, ReqwestConnector,
    },
};
use rustls::ClientConfig;

use super::slow;

/// The user agent.
const AGENT: &str = concat!("millstream/", env!("CARGO_PKG_VERSION"));
/// Connections that are older are used no more.
const AGE_MAX: Duration = Duration::from_secs(60);

/// The settings of requests.
#[derive(Clone, Debug)]
pub(super) struct Http {
    /// The option `retry.timeout`.
    pub(super) timeout: Duration,
    /// The option `part`: the maximum bytes of a request.
    pub(super) part_bytes: usize,
    /// The option `tls`; None for the system's root certificates.
    pub(super) tls: Option<Arc<ClientTls>>,
    pub(super) reporter: Reporter,
}

impl HttpConnector for Http {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let current = Mutex::new(Current::new(self, self.tls(), options)?);
        Ok(HttpClient::new(Requests {
            http: self.clone(),
            options: options.clone(),
            current,
        }))
    }
}

/// A client whose connections are made anew from time to time.
struct Requests {
    http: Http,
    options: ClientOptions,
    current: Mutex<Current>,
}

/// The client in use.
struct Current {
    client: HttpClient,
    tls: Option<Arc<ClientConfig>>,
    since: Instant,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.http.fmt(f)
    }
}

impl Requests {
    fn client(&self) -> object_store::Result<HttpClient> {
        let tls = self.http.tls();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let same = match (&tls, &current.tls) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (new, old) => new.is_none() && old.is_none(),
        };
        if !same || current.since.elapsed() >= AGE_MAX {
            *current = Current::new(&self.http, tls, &self.options)?;
        }
        Ok(current.client.clone())
    }
}

impl Http {
    fn tls(&self) -> Option<Arc<ClientConfig>> {
        let tls = self.tls.as_ref();
        tls.map(|tls| tls.settings(&self.reporter))
    }
}

impl Current {
    fn new(
        http: &Http,
        tls: Option<Arc<ClientConfig>>,
        options: &ClientOptions,
    ) -> object_store::Result<Self> {
        let client = match &tls {
            None => ReqwestConnector::default().connect(options)?,
            // The crate's own options support neither client certificates nor a minimum version.
            Some(tls) => {
                let client = reqwest::Client::builder()
                    .tls_backend_preconfigured(ClientConfig::clone(tls))
                    .timeout(slow::limit(http.timeout, http.part_bytes))
                    .tcp_user_timeout(http.timeout)
                    .connect_timeout(http.timeout)
                    .user_agent(AGENT)
                    .build();
                let client = client.map_err(|error| Error::Generic {
                    store: "HTTP",
                    source: Box::new(error),
                });
                HttpClient::new(client?)
            }
        };
        Ok(Self {
            client,
            tls,
            since: Instant::now(),
        })
    }
}

impl HttpService for Requests {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let client = self.client();
            let client = client.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?;
            let bytes = request.body().content_length();
            slow::within(self.http.timeout, bytes, client.execute(request)).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use millstream_testkit::Authority;

    use super::*;
    use crate::rig::node;

    fn current(requests: &Requests) -> (Option<Arc<ClientConfig>>, Instant) {
        requests.client().unwrap();
        let current = requests.current.lock().unwrap();
        (current.tls.clone(), current.since)
    }

    #[test]
    fn connections_are_made_anew_after_a_minute_and_when_certificates_change() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        Authority::new("old").write_root(place, "ca");
        let ca = place.join("ca.pem");
        let options = node(serde_json::json!({ "tls": { "ca": ca.to_str().unwrap() } }));
        let tls = options.get("tls").unwrap().read().unwrap();
        let tls = ClientTls::check(&tls, &options).unwrap();
        let http = Http {
            timeout: Duration::from_secs(5),
            part_bytes: 5 << 20,
            tls: tls.map(Arc::new),
            reporter: Reporter::new("out"),
        };
        let options = ClientOptions::new();
        let requests = Requests {
            current: Mutex::new(Current::new(&http, http.tls(), &options).unwrap()),
            http,
            options,
        };
        let (first, since) = current(&requests);
        assert_eq!(current(&requests).1, since, "connections are kept");
        fs::write(&ca, "half of a file").unwrap();
        std::thread::sleep(Duration::from_millis(2100));
        assert_eq!(current(&requests).1, since, "the old certificates stay");
        Authority::new("new").write_root(place, "ca");
        std::thread::sleep(Duration::from_millis(2100));
        let (second, since) = current(&requests);
        assert!(!Arc::ptr_eq(&first.unwrap(), second.as_ref().unwrap()));
        requests.current.lock().unwrap().since -= AGE_MAX;
        let (third, later) = current(&requests);
        assert!(later > since && Arc::ptr_eq(&second.unwrap(), &third.unwrap()));
    }
}
