//! What a request became, on its way: the batch, its origin, what is set aside, and the wait for both.
//!
//! `read -> decode -> [send] -> keep`

use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use hyper::StatusCode;
use millstream_pipeline::{delivery::Receipt, outlet::Outlet, reject};
use millstream_record::{Batch, Buffer, ChunkOrigin, Claim, Encoding, Origin, Tag, Time};
use millstream_wire::msgpack::write_str;
use tokio::time::timeout;

use super::{
    answer::{Kept, Refusal},
    body::{Work, retry},
    decode::{Bad, Decoded},
    request::Client,
};

/// A smaller batch gets memory of its size, so that a slow stream does not hold buffers of the pool.
const OWN_BYTES_MAX: usize = 16 << 10;
/// The longest key that is taken.
const KEY_BYTES_MAX: usize = 1024;
/// Stands before a key in the id of its origin: so it is long enough to be unique and no hash of a content.
const KEY_MARK: &[u8] = b"idempotency-key ";

/// A request that is whole.
pub(super) struct Arrived<'r> {
    pub(super) tag: Tag,
    pub(super) received: Time,
    /// The body as it came.
    pub(super) bytes: &'r [u8],
    /// `Idempotency-Key`.
    pub(super) key: Option<&'r [u8]>,
}

/// Sends what a request holds and waits until it is kept.
pub(super) async fn keep(
    client: &Client,
    arrived: &Arrived<'_>,
    decoded: Decoded,
    claim: &Claim,
) -> Result<Kept, Refusal> {
    let Decoded {
        body,
        records,
        mut bad,
    } = decoded;
    if records == 0 && bad.count > 0 {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, bad.errors.join("; ")));
    }
    let shared = &client.shared;
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
    let (outlet, rejects) = (&shared.context.outlet, &shared.context.rejects);
    // Before anything is sent: what waits in a full channel would be kept although its sender was told to come again.
    let room = async {
        outlet.has_room().await;
        if bad.count > 0 {
            rejects.has_room().await;
        }
    };
    timeout(shared.wait, room)
        .await
        .map_err(|_| no_room(client))?;
    let aside = match bad.count {
        0 => None,
        _ => Some(set_aside(client, &batch, &mut bad, claim).await?),
    };
    let mut receipts = Vec::new();
    if records > 0 {
        batch
            .origins
            .extend(origin(arrived, body.len(), records, shared.durable)?);
        batch.body = shared_bytes(body);
        receipts.push((outlet, put(client, outlet, batch).await?));
    }
    if let Some(aside) = aside {
        receipts.push((rejects, put(client, rejects, aside).await?));
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

/// Sends a batch when there is room. Given up while it waits, nothing of it is taken.
async fn put(client: &Client, outlet: &Outlet, batch: Batch) -> Result<Receipt, Refusal> {
    let sent = timeout(client.shared.wait, outlet.send(batch, true)).await;
    sent.map_err(|_| no_room(client))
}

/// Waits until it is settled, but for no room: what waits in a channel that is full may be kept after all.
async fn settled(client: &Client, outlet: &Outlet, receipt: Receipt) -> Result<(), Refusal> {
    let shared = &client.shared;
    tokio::select! {
        biased;
        settled = receipt => settled.map_err(|_| {
            let text = "the request was lost on its way within Millstream: send it again";
            Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, retry(shared))
        }),
        () = outlet.is_full_after(shared.wait) => Err(no_room(client)),
    }
}

fn no_room(client: &Client) -> Refusal {
    let text = "what is behind this source takes nothing more for now";
    Refusal::later(StatusCode::SERVICE_UNAVAILABLE, text, retry(&client.shared))
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
    let mut id = Vec::with_capacity(KEY_MARK.len() + key.len() + 3);
    write_str(&mut id, &[KEY_MARK, key].concat());
    Ok(Some(Origin::Chunk(ChunkOrigin {
        id: id.into(),
        // Only ids that prove nothing by themselves are told apart by their connection.
        connection: 0,
        length: arrived.bytes.len() as u32,
        // The library gives every CRC as 64 bits.
        checksum: crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, arrived.bytes) as u32,
        start: 0,
        end: body_bytes as u32,
        records,
    })))
}

/// The batch that leaves by the port `rejected`: a record for each part, with its own fault.
async fn set_aside(
    client: &Client,
    from: &Batch,
    bad: &mut Bad,
    claim: &Claim,
) -> Result<Batch, Refusal> {
    let context = &client.shared.context;
    let node = &*context.name;
    let bytes = bad
        .items()
        .map(|(item, fault)| reject::bytes(node, from, item, fault));
    let work = Work {
        shared: &client.shared,
        claim,
    };
    let mut body = work.memory(bytes.sum()).await?;
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
