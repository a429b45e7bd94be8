//! Two calls of librdkafka that its Rust binding makes dear: a record goes out by the handle of its topic, and a flush.
//!
//! `rdkafka::producer::BaseProducer::send` names the topic by its text, which it copies for every record, and the client
//! looks that text up in a list, under a lock that its own threads want too. Here a topic is looked up once.
//!
//! It promises that the client has copied a record's bytes when a call returns, and that a topic's handle never outlives
//! its client. Everything else about producers is left to the binding, by [`Sender::producer`].

use std::{ffi::CString, ptr, time::Duration};

use rdkafka::{
    bindings as native,
    error::RDKafkaErrorCode,
    producer::{BaseProducer, Producer as _, ProducerContext},
    types::{RDKafkaHeaders, RDKafkaTopic},
};

/// A record and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Outbound<'a> {
    /// Its topic, as [`Sender::topic`] gave it.
    pub topic: Topic,
    /// Its key, if it has one.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: &'a [u8],
    /// Milliseconds since 1970; 0: now.
    pub timestamp: i64,
    /// By which a report of its delivery names it.
    pub number: usize,
}

/// A topic of one [`Sender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topic(usize);

/// A producer and the topics that it writes to.
pub struct Sender<C: ProducerContext<DeliveryOpaque = usize> + 'static> {
    // Dropped in `drop`, before the producer: a handle holds on to its client.
    topics: Vec<Handle>,
    producer: BaseProducer<C>,
}

/// A topic of the client; one reference to it is ours.
struct Handle(*mut RDKafkaTopic);

// SAFETY: librdkafka's handles may be used and given back by any thread.
#[allow(unsafe_code)]
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from `rd_kafka_topic_new`, its client lives (see `Sender`), and it is given back once.
        #[allow(unsafe_code)]
        unsafe {
            native::rd_kafka_topic_destroy(self.0);
        }
    }
}

impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> Drop for Sender<C> {
    fn drop(&mut self) {
        self.topics.clear();
    }
}

impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> Sender<C> {
    /// With a producer that knows no topic yet.
    pub fn new(producer: BaseProducer<C>) -> Self {
        Self {
            topics: Vec::new(),
            producer,
        }
    }

    /// For everything but sending.
    pub fn producer(&self) -> &BaseProducer<C> {
        &self.producer
    }

    /// Looks a topic up; None if the client takes no such name. Ask once for each: every answer is kept until the end.
    pub fn topic(&mut self, name: &str) -> Option<Topic> {
        let name = CString::new(name).ok()?;
        let client = self.producer.client().native_ptr();
        // SAFETY: the client lives as long as `self`, the name until the call returns, which copies it; no configuration
        // means the client's.
        #[allow(unsafe_code)]
        let handle = unsafe { native::rd_kafka_topic_new(client, name.as_ptr(), ptr::null_mut()) };
        if handle.is_null() {
            return None;
        }
        self.topics.push(Handle(handle));
        Some(Topic(self.topics.len() - 1))
    }

    /// Sends what was taken without waiting for more (`linger.ms`), and waits until nothing is in flight, so long at most. The binding's
    /// flush looks once and then waits in steps of 100 ms; this one is woken by the last answer. Failures are heard by polling.
    pub fn flush(&self, wait: Duration) {
        let wait = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the client lives as long as `self`.
        #[allow(unsafe_code)]
        unsafe {
            // What it says, that something is still in flight, is asked for where it matters.
            native::rd_kafka_flush(self.producer.client().native_ptr(), wait);
        }
    }

    /// Hands a record and its headers to the client, which copies them. Never blocks.
    ///
    /// # Errors
    /// What the client says: `QueueFull` above all. The record is not taken then.
    pub fn send<'h>(
        &self,
        record: Outbound<'_>,
        headers: impl ExactSizeIterator<Item = (&'h str, &'h [u8])>,
    ) -> Result<(), RDKafkaErrorCode> {
        let Some(topic) = self.topics.get(record.topic.0) else {
            return Err(RDKafkaErrorCode::UnknownTopic);
        };
        let (key, key_len) = match record.key {
            Some(key) => (key.as_ptr(), key.len()),
            None => (ptr::null(), 0),
        };
        let headers = native_headers(headers)?;
        // SAFETY: the arguments are pairs of a tag and what it announces, of the types that rdkafka.h states, up to the
        // end's tag. Topic and client live as long as `self`. Key and value are readable for their lengths and are copied
        // before the call returns (RD_KAFKA_MSG_F_COPY). The opaque is a number that is never read as an address.
        #[allow(unsafe_code)]
        let refused = unsafe {
            native::rd_kafka_producev(
                self.producer.client().native_ptr(),
                native::rd_kafka_vtype_t::RD_KAFKA_VTYPE_RKT,
                topic.0,
                native::rd_kafka_vtype_t::RD_KAFKA_VTYPE_MSGFLAGS,
                native::RD_KAFKA_MSG_F_COPY,
                native::rd_kafka_vtype_t::RD_KAFKA_VTYPE_VALUE,
                record.value.as_ptr(),
                record.value.len(),
                native::rd_kafka_vtype_t::RD_KAFKA_VTYPE_KEY,
                key,
                key_len,
                native::rd_kafka_vtype_t::RD_KAFKA_VTYPE_OPAQUE,
                ptr::without_provenance::<u8>(record.number),
                native::rd_kafka_vtype_t::RD_KAFKA_VTYPE_TIMESTAMP,
                record.timestamp,
                native::rd_kafka_vtype_t::RD_KAFKA_VTYPE_HEADERS,
                headers,
                native::rd_kafka_vtype_t::RD_KAFKA_VTYPE_END,
            )
        };
        if refused == native::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Ok(());
        }
        drop_headers(headers);
        Err(refused.into())
    }
}

/// Headers as the client wants them: null for none. It takes them over with the record.
fn native_headers<'h>(
    headers: impl ExactSizeIterator<Item = (&'h str, &'h [u8])>,
) -> Result<*mut RDKafkaHeaders, RDKafkaErrorCode> {
    if headers.len() == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: makes an empty list, which is ours until the client takes it or `drop_headers` does.
    #[allow(unsafe_code)]
    let list = unsafe { native::rd_kafka_headers_new(headers.len()) };
    for (name, value) in headers {
        // SAFETY: `list` lives; name and value are readable for their lengths and are copied before the call returns.
        #[allow(unsafe_code)]
        let refused = unsafe {
            native::rd_kafka_header_add(
                list,
                name.as_ptr().cast(),
                name.len() as isize,
                value.as_ptr().cast(),
                value.len() as isize,
            )
        };
        if refused != native::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            drop_headers(list);
            return Err(refused.into());
        }
    }
    Ok(list)
}

fn drop_headers(headers: *mut RDKafkaHeaders) {
    if !headers.is_null() {
        // SAFETY: the list came from `native_headers`, and the client has not taken it.
        #[allow(unsafe_code)]
        unsafe {
            native::rd_kafka_headers_destroy(headers);
        }
    }
}
