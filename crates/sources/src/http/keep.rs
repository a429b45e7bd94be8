//! Sends the records and the rejected parts of a request, each in one batch, then waits until both batches are kept or settled.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep`

use bytes::Bytes;
use hyper::StatusCode;
use millstream_pipeline::{delivery::Receipt, outlet::Outlet, reject};
use millstream_record::{Batch, Buffer, ChunkOrigin, Encoding, Origin, Tag, Time};
use millstream_sys::checksum::crc32c;
use millstream_wire::{msgpack::write_str, part_id::REQUEST_MARK};
use tokio::time::timeout;

use super::{
    answer::{Kept, Refusal},
    decode::{Bad, Decoded},
    endpoint::Client,
    memory::RequestMemory,
};

/// A batch of up to this size is copied into an allocation of its exact size, so that a slow stream does not hold buffers of the
/// pool.
const OWN_BYTES_MAX: usize = 16 << 10;
/// The longest `Idempotency-Key`.
const KEY_BYTES_MAX: usize = 1024;

/// A request that was received completely.
pub(super) struct Arrived<'r> {
    pub(super) tag: Tag,
    pub(super) received: Time,
    /// The body as received.
    pub(super) bytes: &'r [u8],
    /// `Idempotency-Key`.
    pub(super) key: Option<&'r [u8]>,
}

/// Sends the content of a request, and waits until it is kept.
pub(super) async fn keep(
    client: &Client,
    arrived: &Arrived<'_>,
    decoded: Decoded,
    memory: RequestMemory<'_>,
) -> Result<Kept, Refusal> {
    let Decoded {
        body,
        records,
        mut bad,
    } = decoded;
    if records == 0 && bad.count > 0 {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, bad.errors.join("; ")));
    }
    let endpoint = &client.endpoint;
    let mut batch = Batch {
        tag: arrived.tag.clone(),
        plain: true,
        encoding: Encoding::Packed,
        body: Bytes::new(),
        count: records,
        received: arrived.received,
        values: client.values.clone(),
        origins: Vec::new(),
    };
    let (outlet, rejects) = (&endpoint.context.outlet, &endpoint.context.rejects);
    // The space is checked before anything is sent. Otherwise a batch that waits in a full channel would be kept later, although
    // its sender was asked to retry.
    let room = async {
        outlet.has_room().await;
        if bad.count > 0 {
            rejects.has_room().await;
        }
    };
    timeout(endpoint.wait, room)
        .await
        .map_err(|_| no_room(client))?;
    let rejected = match bad.count {
        0 => None,
        _ => Some(reject_bad(client, &batch, &mut bad, memory).await?),
    };
    let mut receipts = Vec::new();
    if records > 0 {
        batch
            .origins
            .extend(origin(arrived, body.len(), records, endpoint.durable)?);
        batch.body = shared_bytes(body);
        receipts.push((outlet, put(client, outlet, batch).await?));
    }
    if let Some(rejected) = rejected {
        receipts.push((rejects, put(client, rejects, rejected).await?));
    }
    for (outlet, receipt) in receipts {
        settled(client, outlet, receipt).await?;
    }
    Ok(Kept {
        accepted: u64::from(records),
        rejected: bad.count,
        errors: bad.errors,
    })
}

/// Sends a batch when the channel has space. On a timeout, nothing is sent.
async fn put(client: &Client, outlet: &Outlet, batch: Batch) -> Result<Receipt, Refusal> {
    let sent = timeout(client.endpoint.wait, outlet.send(batch, true)).await;
    sent.map_err(|_| no_room(client))
}

/// Waits until the batch is settled. Fails as soon as the channel is full, but not before `endpoint.wait` has passed. The channel
/// may still keep the batch later.
async fn settled(client: &Client, outlet: &Outlet, receipt: Receipt) -> Result<(), Refusal> {
    let endpoint = &client.endpoint;
    tokio::select! {
        biased;
        settled = receipt => settled.map_err(|_| {
            let text = "the request was lost within Millstream: send it again";
            Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, endpoint.wait)
        }),
        () = outlet.is_full_after(endpoint.wait) => Err(no_room(client)),
    }
}

fn no_room(client: &Client) -> Refusal {
    let text = "the channel that this source sends to is full";
    Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, client.endpoint.wait)
}

fn origin(
    arrived: &Arrived<'_>,
    body_bytes: usize,
    records: u32,
    durable: bool,
) -> Result<Option<Origin>, Refusal> {
    let Some(key) = arrived.key else {
        return Ok(None);
    };
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let text = format!("the Idempotency-Key must have 1 to {KEY_BYTES_MAX} bytes");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    if !durable {
        return Ok(None);
    }
    let mut id = Vec::with_capacity(REQUEST_MARK.len() + key.len() + 3);
    write_str(&mut id, &[REQUEST_MARK, key].concat());
    Ok(Some(Origin::Chunk(ChunkOrigin {
        id: id.into(),
        tag: arrived.tag.clone(),
        // The key identifies the request on any connection.
        connection: 0,
        length: arrived.bytes.len() as u32,
        checksum: crc32c(arrived.bytes),
        start: 0,
        end: body_bytes as u32,
        records,
    })))
}

/// The batch for the port `rejected`: one record for each part, with its fault.
async fn reject_bad(
    client: &Client,
    from: &Batch,
    bad: &mut Bad,
    memory: RequestMemory<'_>,
) -> Result<Batch, Refusal> {
    let context = &client.endpoint.context;
    let node = &*context.name;
    let bytes = bad
        .items()
        .map(|(item, fault)| reject::bytes(node, from, item, fault));
    let mut body = memory.reserve(bytes.sum()).await?;
    let mut count = 0;
    for (item, fault) in bad.items() {
        reject::write(&mut body, node, from, item, fault);
        count += 1;
    }
    bad.forget_bytes();
    Ok(reject::envelope(node, from, shared_bytes(body), count))
}

fn shared_bytes(body: Buffer) -> Bytes {
    match body.len() > OWN_BYTES_MAX {
        true => body.freeze(),
        false => Bytes::copy_from_slice(&body),
    }
}
