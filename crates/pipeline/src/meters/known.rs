//! All metrics of Millstream with kind, unit and help text. A test in the program's crate fails if a meter is missing here.

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows until the process ends.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts durations by length.
    Histogram,
    /// Always 1; the labels are the information.
    Info,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, which the name states.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Pages show seconds; the meter counts microseconds.
    Microseconds,
}

impl Unit {
    /// Returns the name of the unit in OpenMetrics; empty for [`Unit::None`].
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Bytes => "bytes",
            Self::Seconds | Self::Microseconds => "seconds",
        }
    }
}

/// A metric.
#[derive(Debug)]
pub struct Known {
    /// The name without `millstream_` and `_total`.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// Its meaning, in a sentence.
    pub help: &'static str,
}

/// The metric with this name.
pub fn known(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

/// The help text of a meter that another program added.
pub(crate) const FOREIGN: &str = "A meter of a component that is not part of Millstream.";

const fn new(kind: Kind, unit: Unit, name: &'static str, help: &'static str) -> Known {
    Known {
        name,
        kind,
        unit,
        help,
    }
}

const fn counter(name: &'static str, help: &'static str) -> Known {
    new(Kind::Counter, Unit::None, name, help)
}

const fn bytes(name: &'static str, help: &'static str) -> Known {
    new(Kind::Counter, Unit::Bytes, name, help)
}

const fn gauge(name: &'static str, help: &'static str) -> Known {
    new(Kind::Gauge, Unit::None, name, help)
}

const fn size(name: &'static str, help: &'static str) -> Known {
    new(Kind::Gauge, Unit::Bytes, name, help)
}

const fn seconds(name: &'static str, help: &'static str) -> Known {
    new(Kind::Gauge, Unit::Seconds, name, help)
}

const fn latency(name: &'static str, help: &'static str) -> Known {
    new(Kind::Histogram, Unit::Seconds, name, help)
}

const fn info(name: &'static str, help: &'static str) -> Known {
    new(Kind::Info, Unit::None, name, help)
}

/// All metrics: of the instance, of every node, of channels, of sources, of sinks.
#[rustfmt::skip]
pub const KNOWN: &[Known] = &[
    info("build", "The version of Millstream."),
    info("config", "The fingerprint of the configuration that runs."),
    gauge("healthy", "1 if /health answers 200, otherwise 0."),
    gauge("reload_failed", "1 from a reload that failed until the next one that succeeds: the configuration that runs is not that of the files."),
    gauge("ready", "1 if /ready answers 200, otherwise 0."),
    size("pool_used_bytes", "Memory that queues, batches and input take of memory_max."),
    size("pool_max_bytes", "The limit memory_max."),
    counter("log_lines_dropped", "Lines of the log that were dropped, because whatever reads stderr is gone, hangs or is too slow."),
    new(Kind::Counter, Unit::Seconds, "thread_cpu_seconds", "CPU time of the threads of one name."),

    info("node", "Section and type of a node."),
    gauge("node_state", "1 for the state that the node is in, 0 for all others."),
    counter("log_events", "Log lines by level and kind, including suppressed ones."),
    counter("records_received", "Records that came in. A record counts once, also when it is sent again."),
    bytes("bytes_received", "Bytes that came in."),
    counter("batches_received", "Batches that came in."),
    counter("records_sent", "Records that the node passed on."),
    bytes("bytes_sent", "Bytes that the node passed on."),
    counter("batches_sent", "Batches that the node passed on."),
    counter("records_rejected", "Records that the node could not use."),
    bytes("bytes_rejected", "Bytes of records that the node could not use."),
    counter("batches_rejected", "Batches of records that the node could not use."),
    counter("records_rejected_kept", "Rejected records that are in data_dir/rejected."),
    bytes("bytes_rejected_dropped", "Rejected bytes that drop_oldest removed."),
    counter("records_settled", "Records that a consumer is done with."),
    counter("records_delivered", "Settled records that were delivered, without rejected and skipped ones."),
    counter("records_dropped", "Records that were dropped before they were settled, for example because a node failed. Sources that can read or receive them again do so."),
    counter("records_filtered", "Records that were left out on purpose."),
    counter("records_failed", "Records that a processor could not process and passed on unchanged."),
    counter("records_unclaimed", "Records whose tag no consumer takes."),
    gauge("pending_records", "Records of the node that are not yet kept or settled."),
    size("pending_bytes", "Bytes of the node that are not yet kept or settled."),
    new(Kind::Counter, Unit::Microseconds, "busy_microseconds", "Time in which the node worked, by the clock; its rate is the utilisation of its tasks."),
    new(Kind::Counter, Unit::Microseconds, "cpu_microseconds", "CPU time of a processor, estimated from a sample of its batches."),
    counter("task_records", "Records that a task of the node received, by the number of the task, if there are several."),
    new(Kind::Counter, Unit::Microseconds, "task_busy_microseconds", "Time in which a task of a processor worked, by the number of the task, if there are several."),
    latency("ack_seconds", "From a batch leaving its source until it was kept or settled, so that its sender can be answered."),
    latency("write_seconds", "Of a disk channel: one commit. Of a sink: from a checkpoint until its data was written, synced or acknowledged."),
    latency("end_to_end_seconds", "From a source receiving the oldest batch of a checkpoint until the sink settled it."),

    size("used_bytes", "Bytes that the channel takes on the disk."),
    size("size_max_bytes", "The limit size_max of the channel."),
    size("disk_free_bytes", "Free bytes of the file system that holds the channel."),
    size("backlog_bytes", "Bytes that a consumer has not settled; of a channel: that its slowest consumer has not settled."),
    seconds("oldest_record_timestamp_seconds", "When the oldest record was received that some consumer has not settled; 0 if there is none."),
    seconds("unsettled_age_seconds", "Age of the oldest batch that the consumer has not settled; 0 if there is none."),
    size("queue_bytes", "Bytes of batches that wait in memory in front of the sink."),
    size("queue_max_bytes", "Bytes of batches that may wait in memory in front of the sink."),
    counter("records_skipped", "Records that were skipped for the consumer, by behind or by channel skip."),
    bytes("bytes_skipped", "Bytes that were skipped for the consumer, by behind or by channel skip."),
    size("consumer_backlog_bytes", "Bytes of the channel that a consumer has not settled, by consumer."),
    gauge("consumers_without_sink", "Consumers of the channel that no sink reads for: the channel holds everything for them until it is full."),
    gauge("unkept_groups", "Groups of batches that the channel writes and has not kept yet."),
    gauge("repeated_chunks", "Chunks that were recognised as repeats since the start."),
    gauge("remembered_ids", "Ids of chunks in the window that recognises repeats."),
    gauge("evicted_young_ids", "Ids that were evicted before dedupe.age, which weakens exactly once."),

    gauge("connections", "Open connections of peers."),
    gauge("peer_connections", "Open connections by peer, of the peers that have the most."),
    gauge("connections_acked", "Open connections whose peer asks for acknowledgements."),
    counter("handshakes_failed", "Connections whose TLS handshake failed."),
    counter("connections_refused", "Connections that ended before they could send a record."),
    counter("connections_unauthenticated", "Connections whose peer did not prove that it has the key."),
    counter("silent_connections_closed", "Connections that were evicted because they had not sent a byte."),
    counter("chunks_acked", "Chunks that were acknowledged."),
    counter("chunks_refused", "Chunks that were not acknowledged."),
    counter("frames_cut", "Connections that ended within a frame."),
    counter("frames_dropped", "Frames of metrics or traces that were dropped."),
    counter("values_skipped", "Values that are not frames of the forward protocol."),
    counter("requests_kept", "Requests that were answered with success."),
    counter("requests_refused", "Requests that cannot be used."),
    counter("requests_put_off", "Requests whose client was asked to retry later."),
    counter("calls_answered", "Calls of Flume that were answered with success."),
    counter("calls_refused", "Calls of Flume that were refused."),
    counter("calls_cut", "Connections that ended within a call."),
    counter("datagrams_received", "Datagrams that were read."),
    counter("datagrams_dropped", "Datagrams that the system dropped because the receive buffer was full."),
    counter("datagrams_cut", "Datagrams that were truncated."),
    counter("messages_answered", "Messages of RELP that were answered."),
    counter("messages_cut", "Connections that ended within a message."),
    counter("messages_too_long", "Messages that exceed line_max."),
    counter("messages_without_header", "Messages without a header of syslog."),
    bytes("bytes_dropped", "Bytes beyond line_max that were dropped."),
    size("lag_bytes", "Bytes of all files that are not read yet."),
    size("lag_bytes_max", "Bytes that are not read yet of the file that is furthest behind."),
    size("file_lag_bytes", "Bytes that are not read yet, of the files that are furthest behind."),
    gauge("open_files", "Open files."),
    counter("files_truncated", "Files that were truncated."),
    counter("files_done", "Files that were read to the end and removed or renamed."),
    counter("files_overwritten", "Files that were overwritten in place while they were read."),
    bytes("copy_bytes", "Bytes of files that were skipped because they are copies of files that are read."),
    bytes("lost_bytes", "Bytes of files that were removed before they were read."),
    counter("read_errors", "Reads of files that failed."),
    bytes("hole_bytes", "Bytes of holes in files, which were skipped."),
    counter("lines_too_long", "Lines that exceed line_max."),
    counter("lines_garbled", "Lines that are not valid in their encoding."),
    counter("writes_refused", "Writes below the mount that were refused."),
    counter("copies_failed", "Copies of a rule of fuse that failed."),
    size("recent_bytes", "Bytes on the disk that keep what was written to the mount readable."),
    bytes("copied_bytes", "Bytes of copies within the mount, which are not shipped again."),
    counter("records_only_copied", "Records of rules with `ship: false`."),
    counter("files_left_out", "Opened files that are not shipped (`leave_out`)."),
    bytes("left_out_bytes", "Bytes written to files that are not shipped (`leave_out`)."),
    counter("restarts", "Starts of journalctl after the first one."),

    seconds("behind_seconds", "Age of the oldest record that the sink has taken and not delivered."),
    bytes("bytes_written", "Bytes that were written to files."),
    counter("files_rotated", "Files that were rotated."),
    counter("outputs_published", "Outputs that were published."),
    bytes("bytes_published", "Bytes of outputs that were published."),
    gauge("connections_open", "Open connections to servers."),
    counter("connections_opened", "Connections to servers that were opened."),
    counter("connections_failed", "Connections to servers that failed."),
    counter("chunks_sent", "Chunks that were sent."),
    counter("chunks_resent", "Chunks that were sent again."),
    counter("heartbeats_unanswered", "Heartbeats that a server did not answer."),
    counter("metadata_dropped", "Records whose metadata was dropped because the receiver does not store it."),
    counter("requests_sent", "Requests that were sent."),
    counter("requests_resent", "Requests that were sent again."),
    counter("records_refused", "Records that a server refused."),
    counter("records_there_already", "Records that a server had already."),
    counter("records_dropped_by_server", "Records of accepted requests that a server dropped."),
    counter("records_given_up", "Records that were rejected after retry.give_up."),
    counter("records_unacknowledged", "Records that were sent again after a connection broke."),
    counter("records_in_doubt", "Records that a broken connection may have lost."),

    counter("graphite_failures", "Attempts to send metrics to Graphite that failed."),
    counter("graphite_lines", "Lines that were sent to Graphite."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_one_entry_with_a_sentence_and_the_unit_of_its_name() {
        for (at, one) in KNOWN.iter().enumerate() {
            let Known {
                name, help, unit, ..
            } = one;
            let is_once = KNOWN[at + 1..].iter().all(|other| other.name != *name);
            assert!(is_once, "{name} is there twice");
            let is_plain = |it: char| it.is_ascii_lowercase() || it == '_';
            assert!(
                name.chars().all(is_plain) && !name.ends_with("_total"),
                "{name}"
            );
            assert!(help.ends_with('.') && help.len() > 10, "{name}: {help}");
            // The formats would need escapes for these characters.
            assert!(!help.contains(['\\', '"', '\n']), "{name}: {help}");
            let is_named = |unit: &str| name.split('_').any(|part| part == unit);
            assert_eq!(is_named("bytes"), *unit == Unit::Bytes, "{name}");
            assert_eq!(is_named("seconds"), *unit == Unit::Seconds, "{name}");
            let is_scaled = *unit == Unit::Microseconds;
            assert_eq!(is_named("microseconds"), is_scaled, "{name}");
        }
    }
}
