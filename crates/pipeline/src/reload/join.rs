//! Consumers join running channels, before a reload changes anything.
//!
//! A sink that reads another channel may have to wait until its earlier tasks have ended. The channel must hold everything for the sink
//! from the reload on, so the consumer is registered, and has its reader, before the reload returns.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::timeout;

use super::{channels::ChannelState, known::Difference, lives::Lives};
use crate::{
    channel::{self, Reader},
    failure::Failure,
    graph::Graph,
    node::Sink,
    outlet::Feed,
    plan::{ChannelInput, ChannelPlan, Input, Plan},
    report::Reporter,
};

/// How long a reload waits for the answer of a channel.
const ANSWER: Duration = Duration::from_secs(5);

/// A consumer that will join a channel.
pub(super) struct Request {
    name: Arc<str>,
    feed: Arc<Feed>,
    consumer: channel::Consumer,
}

/// The pipeline before a reload.
pub(super) struct Running<'a> {
    pub(super) channels: &'a HashMap<Arc<str>, ChannelState>,
    pub(super) sinks: &'a Lives<Arc<dyn Sink>>,
    pub(super) graph: &'a Graph,
}

impl Running<'_> {
    /// Returns the consumers that will join running channels. A sink whose earlier tasks still read the channel has joined it already.
    pub(super) fn requests(&self, plan: &Plan, difference: &Difference) -> Vec<Request> {
        let pumps = plan.channels.iter();
        let pumps = pumps.filter_map(|it| Some((it.pump(), it.input.as_ref()?)));
        let sinks = plan.sinks.iter();
        let sinks = sinks.filter_map(|it| match &it.input {
            Input::Channel(input) => Some((it.name.clone(), input)),
            Input::Memory { .. } => None,
        });
        let starting = pumps.chain(sinks);
        let starting = starting.filter(|(sink, _)| difference.starts(sink));
        let request = |(sink, input): (Arc<str>, &ChannelInput)| {
            self.request(&plan.channels[input.channel], &sink, difference)
        };
        starting.filter_map(request).collect()
    }

    fn request(
        &self,
        channel: &ChannelPlan,
        sink: &Arc<str>,
        difference: &Difference,
    ) -> Option<Request> {
        let name = channel.name.clone();
        let is_usable = |it: &ChannelState| it.unusable.is_none();
        let is_reader = !self.sinks.reading_ends(sink, &name).is_empty();
        if difference.starts(&name) || is_reader || !self.channels.get(&name).is_some_and(is_usable)
        {
            return None;
        }
        Some(Request {
            feed: self.graph.channel(&name)?,
            consumer: channel.consumer(sink),
            name,
        })
    }
}

/// The consumers that have joined running channels.
#[derive(Default)]
pub(super) struct Joined {
    /// By channel and consumer.
    readers: HashMap<(Arc<str>, Arc<str>), Box<dyn Reader>>,
    /// The consumers that their channels did not know before.
    new: Vec<(Arc<str>, Arc<str>, Weak<Feed>)>,
}

impl Joined {
    /// Joins all consumers, or none.
    pub(super) async fn join(requests: Vec<Request>) -> Result<Self, Failure> {
        let mut joined = Self::default();
        for request in requests {
            if let Err(why) = joined.add(request).await {
                joined.undo().await;
                return Err(Failure::config(why));
            }
        }
        Ok(joined)
    }

    async fn add(&mut self, request: Request) -> Result<(), String> {
        let Request {
            name,
            feed,
            consumer,
        } = request;
        let sink = consumer.name.clone();
        let cannot = |why: &str| format!("{sink} cannot read {name}: {why}");
        let answer = timeout(ANSWER, feed.channel().attach(consumer)).await;
        let Ok(answer) = answer else {
            // The channel may answer later. The reader is dropped then, and the next request removes the consumer.
            let place = Arc::downgrade(&feed);
            self.new.push((name.clone(), sink.clone(), place));
            let why = format!("{name} has not answered for {} s", ANSWER.as_secs());
            return Err(cannot(&why));
        };
        let answer = answer.map_err(|_| cannot("the channel has ended"))?;
        let attached = answer.map_err(|why| cannot(&why))?;
        if attached.is_new {
            let place = Arc::downgrade(&feed);
            self.new.push((name.clone(), sink.clone(), place));
        }
        self.readers.insert((name, sink), attached.reader);
        Ok(())
    }

    /// Takes the reader of a consumer that has joined a channel.
    pub(super) fn reader(
        &mut self,
        channel: &Arc<str>,
        sink: &Arc<str>,
    ) -> Option<Box<dyn Reader>> {
        self.readers.remove(&(channel.clone(), sink.clone()))
    }

    /// Removes the consumers that joined newly. Their readers must be dropped.
    pub(super) async fn undo(mut self) {
        self.readers.clear();
        for (name, sink, feed) in std::mem::take(&mut self.new) {
            let Some(feed) = feed.upgrade() else { continue };
            let forgotten = timeout(ANSWER, feed.channel().forget(&sink)).await;
            if let Ok(Ok(Err(why))) = forgotten {
                let text = format_args!("the consumer {sink} stays in the channel: {why}");
                Reporter::new(&name).warn("forget", text);
            }
        }
    }
}
