//! Connects to S3, Google Cloud Storage or Azure, from a URL and its options.

use std::sync::{Arc, Once};

use millstream_config::Secret;
use millstream_pipeline::failure::Failure;
use object_store::{
    BackoffConfig, ClientOptions, Error, RetryConfig, aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{cloud::Objects, requests::Http, slow};

/// The number of retries of a request before the sink reports the failure and waits.
const RETRIES: usize = 2;

/// The kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    File,
    S3,
    Gs,
    Az,
}

impl Scheme {
    /// Splits a URL into its scheme and the part after `://`. Returns None if the scheme is unknown.
    pub(super) fn of(url: &str) -> Option<(Self, &str)> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = match scheme {
            "file" => Self::File,
            "s3" => Self::S3,
            "gs" => Self::Gs,
            "az" => Self::Az,
            _ => return None,
        };
        Some((scheme, rest))
    }
}

/// Credentials. Missing values are read from the environment variables that the store's own tools use.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Auth {
    /// S3: the id of the access key. Azure: the account.
    pub(super) access_key: Option<String>,
    /// S3: the secret access key. Azure: the account's key.
    #[schemars(with = "Option<String>")]
    pub(super) secret_key: Option<Secret>,
    /// S3: the session token of temporary credentials.
    #[schemars(with = "Option<String>")]
    pub(super) token: Option<Secret>,
    /// Google: the JSON key of a service account, such as `${file:gcs.json}`.
    #[schemars(with = "Option<String>")]
    pub(super) service_account: Option<Secret>,
}

/// A bucket, and how to reach it.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub(super) scheme: Scheme,
    pub(super) name: String,
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
    pub(super) auth: Auth,
}

/// Creates the client without sending a request.
pub(super) fn connect(bucket: &Bucket, http: &Http) -> Result<Arc<dyn Objects>, Failure> {
    one_provider();
    let plain = bucket
        .endpoint
        .as_deref()
        .is_some_and(|e| e.starts_with("http://"));
    let client = ClientOptions::new()
        .with_timeout(slow::limit(http.timeout, http.part_bytes))
        .with_connect_timeout(http.timeout)
        .with_allow_http(plain);
    let again = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRIES,
        retry_timeout: http.timeout,
    };
    let objects: Result<Arc<dyn Objects>, Error> = match bucket.scheme {
        Scheme::S3 => s3(bucket)
            .with_client_options(client)
            .with_retry(again)
            .with_http_connector(http.clone())
            .build()
            .map(|store| Arc::new(store) as Arc<dyn Objects>),
        Scheme::Gs => gs(bucket)
            .with_client_options(client)
            .with_retry(again)
            .with_http_connector(http.clone())
            .build()
            .map(|store| Arc::new(store) as Arc<dyn Objects>),
        Scheme::Az | Scheme::File => az(bucket)
            .with_client_options(client)
            .with_retry(again)
            .with_http_connector(http.clone())
            .build()
            .map(|store| Arc::new(store) as Arc<dyn Objects>),
    };
    objects
        .map_err(|error| Failure::config(format!("cannot use the bucket {}: {error}", bucket.name)))
}

fn s3(bucket: &Bucket) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(&bucket.name);
    if let Some(endpoint) = &bucket.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &bucket.region {
        builder = builder.with_region(region);
    }
    if let Some(key) = &bucket.auth.access_key {
        builder = builder.with_access_key_id(key);
    }
    if let Some(key) = &bucket.auth.secret_key {
        builder = builder.with_secret_access_key(key.expose());
    }
    if let Some(token) = &bucket.auth.token {
        builder = builder.with_token(token.expose());
    }
    builder
}

fn gs(bucket: &Bucket) -> GoogleCloudStorageBuilder {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&bucket.name);
    if let Some(endpoint) = &bucket.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    if let Some(key) = &bucket.auth.service_account {
        builder = builder.with_service_account_key(key.expose());
    }
    builder
}

fn az(bucket: &Bucket) -> MicrosoftAzureBuilder {
    let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(&bucket.name);
    if let Some(endpoint) = &bucket.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if let Some(account) = &bucket.auth.access_key {
        builder = builder.with_account(account);
    }
    if let Some(key) = &bucket.auth.secret_key {
        builder = builder.with_access_key(key.expose());
    }
    builder
}

/// Sets the cryptography provider of rustls, which rustls requires once for the whole process.
fn one_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error means that a provider is set already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
