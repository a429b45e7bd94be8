//! When a chunk counts as a repeat.

use std::time::Duration;

use super::*;

const UNIQUE: Identity = Identity::Unique;
const SHARED: Identity = Identity::Shared;

fn key(number: u8) -> Key {
    Key([number; 16])
}

fn window(ids: usize) -> Window {
    Window::new(Dedupe {
        ids,
        age: Duration::from_secs(100),
        store_content_ids: false,
    })
}

fn kept(window: &mut Window, number: u8, identity: Identity, connection: u64) {
    window.insert(key(number), identity, connection, 10);
    let end = window.end();
    window.keep(end);
}

#[test]
fn a_second_copy_is_pending_until_the_first_is_kept() {
    let mut window = window(10);
    window.insert(key(1), UNIQUE, 1, 10);
    assert_eq!(window.look_up(&key(1), UNIQUE, 2), Lookup::Pending);
    window.keep(1);
    assert_eq!(window.look_up(&key(1), UNIQUE, 2), Lookup::Kept);
    assert_eq!(window.look_up(&key(2), UNIQUE, 2), Lookup::New);
}

#[test]
fn a_content_id_is_a_repeat_only_after_its_connection_broke() {
    let mut window = window(10);
    kept(&mut window, 1, SHARED, 1);
    assert_eq!(
        window.look_up(&key(1), SHARED, 1),
        Lookup::New,
        "the same connection"
    );
    assert_eq!(
        window.look_up(&key(1), SHARED, 2),
        Lookup::New,
        "still open"
    );
    window.close(1, false);
    assert_eq!(window.look_up(&key(1), SHARED, 2), Lookup::Kept);
}

#[test]
fn an_orderly_close_or_a_follower_proves_that_the_acknowledgement_arrived() {
    let mut window = window(10);
    kept(&mut window, 1, SHARED, 1);
    window.close(1, true);
    assert_eq!(window.look_up(&key(1), SHARED, 2), Lookup::New);
    assert_eq!(window.drain_closed(), [1]);
    kept(&mut window, 2, SHARED, 3);
    window.follow(3);
    kept(&mut window, 3, SHARED, 3);
    window.close(3, false);
    assert_eq!(window.look_up(&key(2), SHARED, 4), Lookup::New);
    assert_eq!(window.look_up(&key(3), SHARED, 4), Lookup::Kept);
}

#[test]
fn a_close_before_our_acknowledgement_proves_nothing() {
    let mut window = window(10);
    window.insert(key(1), SHARED, 1, 10);
    window.close(1, true);
    window.keep(1);
    assert_eq!(window.look_up(&key(1), SHARED, 2), Lookup::Kept);
}

#[test]
fn the_proof_outlives_a_restart() {
    let mut window = window(10);
    let chunk = |number, connection| IdRecord::Chunk {
        key: key(number),
        connection,
        seconds: 10,
        proved: false,
    };
    window.restore(&chunk(1, 1));
    window.restore(&chunk(2, 1));
    window.restore(&chunk(3, 2));
    window.restore(&IdRecord::Closed {
        connection: 2,
        seconds: 10,
    });
    window.finish_restore();
    assert_eq!(window.look_up(&key(1), SHARED, 9), Lookup::New, "followed");
    assert_eq!(
        window.look_up(&key(2), SHARED, 9),
        Lookup::Kept,
        "the restart broke the connection"
    );
    assert_eq!(window.look_up(&key(3), SHARED, 9), Lookup::New, "closed");
}

#[test]
fn ids_are_evicted_by_number_and_age_and_the_young_ones_are_counted() {
    let mut window = window(2);
    for number in 1..=4 {
        kept(&mut window, number, UNIQUE, 1);
    }
    window.evict(Time::from_parts(20, 0));
    assert_eq!((window.len(), window.evicted_young()), (2, 2));
    assert_eq!(window.look_up(&key(2), UNIQUE, 1), Lookup::New);
    assert_eq!(window.look_up(&key(3), UNIQUE, 1), Lookup::Kept);
    window.evict(Time::from_parts(111, 0));
    assert_eq!((window.len(), window.evicted_young()), (0, 2));
}

#[test]
fn pending_ids_are_never_evicted() {
    let mut window = window(1);
    window.insert(key(1), UNIQUE, 1, 0);
    window.insert(key(2), UNIQUE, 1, 0);
    window.evict(Time::from_parts(1_000_000, 0));
    assert_eq!(window.look_up(&key(1), UNIQUE, 2), Lookup::Pending);
}
