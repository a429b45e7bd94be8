//! Clients that send a record and wait for the answer. They implement just enough of Flume's RPC, RELP and HTTP for this purpose.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

/// A client of a source: its connection, and the number of records that it has delivered.
pub struct Client {
    pub stream: TcpStream,
    pub delivered: u32,
}

/// Appends an Avro string: twice the length, then the bytes.
fn avro(out: &mut Vec<u8>, text: &[u8]) {
    out.push(u8::try_from(text.len() * 2).unwrap());
    out.extend_from_slice(text);
}

/// Makes a Flume call and reads its answer. The first call, which has no body, includes the handshake.
pub fn call(client: &mut Client, name: &[u8], body: Option<&[u8]>) {
    let flume = 0x86aa_dae2_c454_74c0_fe93_ffd0_f235_0a65_u128.to_be_bytes();
    let mut call = Vec::new();
    if body.is_none() {
        call.extend([&flume[..], &[0], &flume[..], &[0]].concat());
    }
    call.push(0);
    avro(&mut call, name);
    if let Some(body) = body {
        // No headers.
        call.push(0);
        avro(&mut call, body);
    }
    let head = [client.delivered, 1, u32::try_from(call.len()).unwrap()];
    let head: Vec<u8> = head.iter().flat_map(|word| word.to_be_bytes()).collect();
    client.stream.write_all(&[head, call].concat()).unwrap();
    let mut head = [0; 12];
    client.stream.read_exact(&mut head).unwrap();
    assert_eq!(head[..4], client.delivered.to_be_bytes());
    let length = u32::from_be_bytes(head[8..].try_into().unwrap());
    let mut answer = vec![0; length as usize];
    client.stream.read_exact(&mut answer).unwrap();
    assert!(answer.ends_with(&[0]), "no error: {answer:?}");
}

/// Sends a RELP command and reads its answer.
pub fn command(client: &mut Client, name: &str, data: &str) {
    client.delivered += 1;
    let number = client.delivered;
    let frame = format!("{number} {name} {} {data}\n", data.len());
    client.stream.write_all(frame.as_bytes()).unwrap();
    let mut word = || {
        let mut word = Vec::new();
        loop {
            let mut byte = [0];
            client.stream.read_exact(&mut byte).unwrap();
            match byte[0] {
                b' ' => return String::from_utf8(word).unwrap(),
                other => word.push(other),
            }
        }
    };
    let (answered, rsp, length) = (word(), word(), word());
    assert_eq!((answered, &*rsp), (number.to_string(), "rsp"));
    let mut answer = vec![0; length.parse::<usize>().unwrap() + 1];
    client.stream.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"200"), "{answer:?}");
}

/// Posts a record and waits until it is kept.
pub fn post(client: &mut Client) {
    let request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{\"message\": \"x\"}";
    client.stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let length = answer
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    client.stream.read_exact(&mut body).unwrap();
}
