//! Questions about topics, asked of the cluster with the admin requests of the protocol.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication},
    client::DefaultClientContext,
    config::FromClientConfig,
    error::RDKafkaErrorCode,
};

use super::{config, kind, told};
use crate::{Error, Kind, Settings};

/// What the client of the questions may know of our settings: where and who, not what a producer is.
fn client(settings: &Settings) -> Result<AdminClient<DefaultClientContext>, Error> {
    AdminClient::from_config(&config(&settings.access())).map_err(|error| told(&error))
}

/// The property `max.message.bytes` of a topic.
pub(super) fn record_max(
    settings: &Settings,
    topic: &str,
    timeout: Duration,
) -> Result<usize, Error> {
    let client = client(settings)?;
    let options = AdminOptions::new().request_timeout(Some(timeout));
    let asked = [ResourceSpecifier::Topic(topic)];
    let answer = wait(client.describe_configs(&asked, &options)).map_err(|error| told(&error))?;
    let resource = match answer.into_iter().next() {
        Some(Ok(resource)) => resource,
        Some(Err(code)) => return Err(Error::new(kind(code), format!("topic {topic}: {code}"))),
        None => return Err(Error::new(Kind::Again, format!("topic {topic}: no answer"))),
    };
    let value = resource.get("max.message.bytes");
    let value = value.and_then(|entry| entry.value.as_ref()?.parse().ok());
    value.ok_or_else(|| {
        let text = format!("topic {topic}: the broker does not tell its max.message.bytes");
        Error::new(Kind::Refused, text)
    })
}

/// Makes a topic of one partition, replicated as the broker does by default, unless it is there.
pub(super) fn make_topic(settings: &Settings, topic: &str, timeout: Duration) -> Result<(), Error> {
    let client = client(settings)?;
    let options = AdminOptions::new().request_timeout(Some(timeout));
    let new = NewTopic::new(topic, 1, TopicReplication::Fixed(-1));
    let answer = wait(client.create_topics([&new], &options)).map_err(|error| told(&error))?;
    match answer.into_iter().next() {
        Some(Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(()),
        Some(Err((_, code))) => {
            let text = format!("cannot make the topic {topic}: {code}");
            Err(Error::new(kind(code), text))
        }
        None => Err(Error::new(Kind::Again, format!("topic {topic}: no answer"))),
    }
}

/// Waits on this thread for what a thread of the client's will say.
fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park();
    }
}
