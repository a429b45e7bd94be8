//! Computes the rate of each edge of the graph from the rates of the nodes, because the data path counts records only per node.
//!
//! If a consumer has a single incoming edge, that edge carries everything that the consumer receives. An edge that takes all tags carries
//! everything that its port sends. Edges of the same port with the same tags have the same rate. If all incoming edges of a consumer except
//! one have a known rate, the rate of that edge follows by subtraction. These rules are repeated until no further rate becomes known. An
//! edge that remains undetermined has no rate.

use std::sync::Arc;

use millstream_pipeline::plan::Link;
use serde_json::{Value, json};

/// The rates of a node, in records per second. `None`: the node does not count these records.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Records that the node received.
    pub received: Option<f64>,
    /// Records that left by its ports other than `NAME.rejected`.
    pub sent: Option<f64>,
    /// Records that left by `NAME.rejected`.
    pub rejected: Option<f64>,
}

/// The name of the port for rejected records.
const REJECTED: &str = "rejected";

/// The edges of the running graph as JSON. An edge that takes all tags has no `tags`. An edge with an unknown rate has no
/// `records_per_second`.
pub fn edges(links: &[Link], of: impl Fn(&Arc<str>) -> Rates) -> Vec<Value> {
    let rates = rates(links, of);
    let edge = |(link, rate): (&Link, Option<f64>)| {
        let from = match &*link.port {
            "" => link.from.to_string(),
            port => format!("{}.{port}", link.from),
        };
        let mut edge = json!({ "from": from, "to": &*link.to });
        if let Some(tags) = &link.tags {
            edge["tags"] = json!(tags.to_string());
        }
        if let Some(rate) = rate {
            edge["records_per_second"] = json!((rate * 10.0).round() / 10.0);
        }
        edge
    };
    links.iter().zip(rates).map(edge).collect()
}

/// The rate of each link, in the order of `links`; `None` if it is unknown.
fn rates(links: &[Link], of: impl Fn(&Arc<str>) -> Rates) -> Vec<Option<f64>> {
    let mut known = vec![None; links.len()];
    loop {
        let before = known.iter().flatten().count();
        for at in 0..links.len() {
            if known[at].is_none() {
                known[at] = from_consumer(links, &known, at, &of)
                    .or_else(|| from_port(links, at, &of))
                    .or_else(|| from_siblings(links, &known, at));
            }
        }
        if known.iter().flatten().count() == before {
            return known;
        }
    }
}

/// The rate of the edge's consumer minus the rates of the consumer's other incoming edges, if all of these are known.
fn from_consumer(
    links: &[Link],
    known: &[Option<f64>],
    at: usize,
    of: impl Fn(&Arc<str>) -> Rates,
) -> Option<f64> {
    let to = &links[at].to;
    let others = others(links, at, |link| link.to == *to);
    // If a node receives its own rejected records again, its meter counts them like other records. In this case the result is approximate.
    let others: Option<f64> = others.map(|other| known[other]).sum();
    Some((of(to).received? - others?).max(0.0))
}

/// The rate of the edge's port, if this rate is known and the edge takes all tags.
fn from_port(links: &[Link], at: usize, of: impl Fn(&Arc<str>) -> Rates) -> Option<f64> {
    let link = &links[at];
    if link.tags.is_some() {
        return None;
    }
    let rates = of(&link.from);
    if &*link.port == REJECTED {
        return rates.rejected;
    }
    let of_node = links.iter().filter(|other| other.from == link.from);
    let mut ports = of_node.filter(|other| &*other.port != REJECTED);
    let is_only_port = ports.all(|other| other.port == link.port);
    // The node's rate counts the records of all ports that have consumers. It is the rate of the port `NAME` if no other port has a
    // consumer.
    (is_only_port && link.port.is_empty()).then_some(rates.sent)?
}

/// The rate of another edge of the same port that takes the same tags.
fn from_siblings(links: &[Link], known: &[Option<f64>], at: usize) -> Option<f64> {
    let link = &links[at];
    let tags = |link: &Link| link.tags.as_ref().map(ToString::to_string);
    let same = |other: &Link| {
        other.from == link.from && other.port == link.port && tags(other) == tags(link)
    };
    others(links, at, same).find_map(|other| known[other])
}

fn others(links: &[Link], at: usize, fits: impl Fn(&Link) -> bool) -> impl Iterator<Item = usize> {
    let all = links.iter().enumerate();
    all.filter(move |(other, link)| *other != at && fits(link))
        .map(|(other, _)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates of edges. `links` are `(from.port, to)`. `nodes` are `(node, received, sent)`; a negative number means that the node does
    /// not count these records.
    fn found(links: &[(&str, &str)], nodes: &[(&str, f64, f64)]) -> Vec<Option<f64>> {
        let link = |(from, to): &(&str, &str)| {
            let (from, port) = from.split_once('.').unwrap_or((from, ""));
            Link {
                from: from.into(),
                port: port.into(),
                to: (*to).into(),
                tags: None,
            }
        };
        let links: Vec<Link> = links.iter().map(link).collect();
        rates(&links, |name| {
            let node = nodes.iter().find(|(node, ..)| **node == **name);
            let given = |value: f64| (value >= 0.0).then_some(value);
            node.map_or(Rates::default(), |(_, received, sent)| Rates {
                received: given(*received),
                sent: given(*sent),
                rejected: None,
            })
        })
    }

    #[test]
    fn several_sources_share_a_channel_and_several_sinks_read_it() {
        let links = [
            ("a", "buffer"),
            ("b", "buffer"),
            ("buffer", "x"),
            ("buffer", "y"),
        ];
        let nodes = [
            ("a", -1.0, 10.0),
            ("b", -1.0, 5.0),
            ("buffer", 15.0, -1.0),
            ("x", 15.0, -1.0),
            ("y", 4.0, -1.0),
        ];
        let wanted = [Some(10.0), Some(5.0), Some(15.0), Some(4.0)];
        assert_eq!(found(&links, &nodes), wanted);
    }

    #[test]
    fn routes_are_distinguished_by_what_their_consumers_receive() {
        let links = [
            ("in", "levels"),
            ("levels.errors", "x"),
            ("levels.rest", "y"),
        ];
        let nodes = [
            ("in", -1.0, 9.0),
            ("levels", 9.0, 9.0),
            ("x", 2.0, -1.0),
            ("y", 7.0, -1.0),
        ];
        assert_eq!(found(&links, &nodes), [Some(9.0), Some(2.0), Some(7.0)]);
    }

    #[test]
    fn routes_that_meet_again_are_distinguished_by_subtraction_or_not_at_all() {
        let links = [("r.a", "p"), ("p", "x"), ("r.b", "x")];
        let nodes = [("r", 9.0, 9.0), ("p", 4.0, 3.0), ("x", 8.0, -1.0)];
        assert_eq!(found(&links, &nodes), [Some(4.0), Some(3.0), Some(5.0)]);
        let links = [("r.a", "x"), ("r.b", "x")];
        assert_eq!(found(&links, &nodes), [None, None]);
    }

    #[test]
    fn an_edge_between_nodes_that_count_nothing_has_no_rate() {
        assert_eq!(found(&[("a", "x")], &[]), [None]);
    }
}
