//! The brokers: their addresses, a connection to each, the controller and the coordinators.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    access::Access,
    accumulator::SharedAccumulator,
    codes::{self, Todo},
    connection::{ANSWER, Connection, Fault},
    messages::{Coordinates, FindCoordinator, Request},
};
use crate::Error;

/// The pause before a request is retried.
pub(super) const RETRY: Duration = Duration::from_millis(50);
/// Initial timeout for a request that another broker can answer as well. Each failed attempt triples the timeout, in case all brokers are
/// slow. After two failed attempts it exceeds the timeout of the connection, which then ends the request.
const PATIENCE: Duration = Duration::from_secs(5);
/// The back-off before a broker is reconnected: the initial and the maximum duration.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

pub(super) struct Cluster {
    access: Access,
    shared: Arc<SharedAccumulator>,
    /// The address of each broker, by its id.
    brokers: RefCell<HashMap<i32, String>>,
    controller: Cell<i32>,
    links: RefCell<HashMap<String, Rc<Mutex<Link>>>>,
    coordinators: RefCell<HashMap<(Coordinates, String), String>>,
    /// The index of the broker for requests that any broker can answer. It is incremented after a
    /// failed request, and before a repetition, because a broker may answer with old data for a
    /// long time.
    turn: Cell<usize>,
}

#[derive(Default)]
struct Link {
    connection: Option<Rc<Connection>>,
    wait: Duration,
    not_before: Option<Instant>,
}

impl Cluster {
    pub(super) fn new(access: Access, shared: Arc<SharedAccumulator>) -> Self {
        Self {
            access,
            shared,
            brokers: RefCell::default(),
            controller: Cell::new(-1),
            links: RefCell::default(),
            coordinators: RefCell::default(),
            turn: Cell::new(0),
        }
    }

    /// Updates brokers and controller from metadata.
    pub(super) fn learn(&self, brokers: Vec<(i32, String)>, controller: i32) {
        *self.brokers.borrow_mut() = brokers.into_iter().collect();
        self.controller.set(controller);
    }

    /// The addresses of all brokers. The order stays when metadata arrives, so that each turn
    /// reaches another one.
    fn addresses(&self) -> Vec<String> {
        let mut all = self.access.brokers.clone();
        let brokers = self.brokers.borrow();
        let others = brokers.values().filter(|address| !all.contains(address));
        let mut others: Vec<String> = others.cloned().collect();
        others.sort_unstable();
        all.append(&mut others);
        all
    }

    /// The number of brokers that may be asked.
    pub(super) fn brokers(&self) -> usize {
        self.addresses().len()
    }

    /// The connection to `host:port`.
    async fn at(&self, address: &str) -> Result<Rc<Connection>, Fault> {
        let link = self
            .links
            .borrow_mut()
            .entry(address.to_owned())
            .or_default()
            .clone();
        // If two tasks need the same connection, the second task waits here for the attempt of the first.
        let mut link = link.lock().await;
        if let Some(connection) = link.connection.take_if(|it| !it.is_broken()) {
            return Ok(link.connection.insert(connection).clone());
        }
        link.connection = None;
        if let Some(at) = link.not_before {
            sleep_until(at).await;
        }
        match Connection::open(address, &self.access).await {
            Ok(connection) => {
                (link.wait, link.not_before) = (Duration::ZERO, None);
                Ok(link.connection.insert(Rc::new(connection)).clone())
            }
            Err(fault) => {
                link.wait = (link.wait * 2).clamp(RECONNECT.0, RECONNECT.1);
                link.not_before = Some(Instant::now() + link.wait);
                self.complain(&fault);
                Err(fault)
            }
        }
    }

    /// The connection to a broker by its id.
    pub(super) async fn broker(&self, id: i32) -> Result<Rc<Connection>, Fault> {
        let address = self.brokers.borrow().get(&id).cloned();
        let address = address.ok_or_else(|| Fault(format!("broker {id} is not known")))?;
        self.at(&address).await
    }

    /// The connection to the broker that currently gets requests that any broker can answer.
    pub(super) async fn any(&self) -> Result<Rc<Connection>, Fault> {
        let all = self.addresses();
        let turn = self.turn.get().checked_rem(all.len()).unwrap_or(0);
        match all.get(turn) {
            Some(address) => self.at(address).await,
            None => Err(Fault("no broker".to_owned())),
        }
    }

    /// Lets the next request that any broker can answer go to another broker.
    pub(super) fn turn(&self) {
        self.turn.set(self.turn.get().wrapping_add(1));
    }

    /// Sends a request to any broker. Retries with other brokers until one answers.
    pub(super) async fn ask_any<R: Request>(&self, request: &R) -> R::Answer {
        self.ask_with(async || self.any().await, request).await
    }

    /// Sends a request to the controller, as metadata named it last, until an answer arrives. If
    /// the controller is not known or cannot be reached, sends the request to any broker. A broker
    /// in KRaft mode forwards it; with ZooKeeper it may answer NOT_CONTROLLER.
    pub(super) async fn ask_controller<R: Request>(&self, request: &R) -> R::Answer {
        let controller = async || match self.broker(self.controller.get()).await {
            Ok(connection) => Ok(connection),
            Err(_) => self.any().await,
        };
        self.ask_with(controller, request).await
    }

    async fn ask_with<R: Request>(
        &self,
        whom: impl AsyncFn() -> Result<Rc<Connection>, Fault>,
        request: &R,
    ) -> R::Answer {
        let mut patience = PATIENCE;
        loop {
            let answer = match whom().await {
                Ok(connection) => {
                    let asked = timeout(patience, connection.ask(request)).await;
                    let late =
                        |_| Err(connection.fault("no answer in time; asking another broker"));
                    asked.unwrap_or_else(late)
                }
                Err(fault) => Err(fault),
            };
            match answer {
                Ok(answer) => return answer,
                Err(fault) => {
                    patience = (patience * 3).min(ANSWER * 2);
                    self.complain(&fault);
                    // Another broker may be available.
                    self.turn();
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Sends a request to the coordinator of `key` until the answer is final. `code` extracts the error code of an
    /// answer.
    pub(super) async fn ask_coordinator<R: Request>(
        &self,
        of: Coordinates,
        key: &str,
        request: &R,
        code: impl Fn(&R::Answer) -> i16,
    ) -> Result<R::Answer, Error> {
        loop {
            let address = self.coordinator(of, key).await?;
            let answer = match self.at(&address).await {
                Ok(connection) => connection.ask(request).await,
                Err(fault) => Err(fault),
            };
            match answer {
                Ok(answer) => {
                    let code = code(&answer);
                    match codes::todo(code) {
                        _ if code == codes::NONE => return Ok(answer),
                        Todo::Fail(_) => return Ok(answer),
                        Todo::Seek => self.forget(of, key),
                        Todo::Retry => {}
                    }
                    if code != codes::CONCURRENT_TRANSACTIONS {
                        let said = codes::error(code, R::NAME, None);
                        self.complain(&Fault(format!("{said}; retrying")));
                    }
                }
                Err(fault) => {
                    self.complain(&fault);
                    self.forget(of, key);
                }
            }
            sleep(RETRY).await;
        }
    }

    /// Lets the coordinator be looked up again, at another broker: the last one may not know yet
    /// that it has moved.
    fn forget(&self, of: Coordinates, key: &str) {
        self.turn();
        self.coordinators.borrow_mut().remove(&(of, key.to_owned()));
    }

    async fn coordinator(&self, of: Coordinates, key: &str) -> Result<String, Error> {
        let id = (of, key.to_owned());
        if let Some(known) = self.coordinators.borrow().get(&id) {
            return Ok(known.clone());
        }
        loop {
            let (code, address) = self.ask_any(&FindCoordinator { of, key }).await;
            match codes::todo(code) {
                _ if code == codes::NONE => {
                    self.coordinators.borrow_mut().insert(id, address.clone());
                    return Ok(address);
                }
                Todo::Retry | Todo::Seek => {
                    let said = codes::error(code, &format!("the coordinator of {key}"), None);
                    self.complain(&Fault(format!("{said}; retrying")));
                    self.turn();
                    sleep(RETRY).await;
                }
                Todo::Fail(_) => {
                    return Err(codes::error(
                        code,
                        &format!("the coordinator of {key}"),
                        None,
                    ));
                }
            }
        }
    }

    /// Stores a message for the operator.
    pub(super) fn complain(&self, fault: &Fault) {
        self.shared.lock().complaint = Some(fault.0.clone());
    }
}
