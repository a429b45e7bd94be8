//! The two ends of a path: the gate lets positions into the chain, and behind the chain the path is watched.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use millstream_record::Position;
use tokio::sync::OwnedSemaphorePermit;

use super::Path;
use crate::{
    chain::{ChainReader, emptied},
    channel::{Bounds, BoxFuture, Delivered, Reader},
    failure::Failure,
};

/// Reads a channel for a chain. In probation, hands out one position at a time.
pub(crate) struct Gate {
    reader: Box<dyn Reader>,
    path: Arc<Path>,
    /// The last position that was handed out.
    position: Position,
    /// The mark need not be written for positions up to this one.
    noted: Position,
    /// The last position in probation; `None`: the path is at full speed.
    until: Option<Position>,
    has_begun: bool,
    turn: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
    aside: Option<Aside>,
}

/// A batch that is being set aside.
struct Aside {
    position: Position,
    keeping: BoxFuture<'static, Result<(), Failure>>,
    emptied: Delivered,
}

impl Gate {
    pub(crate) fn new(reader: Box<dyn Reader>, path: Arc<Path>) -> Self {
        let noted = path.mark().upto();
        Self {
            reader,
            position: Position::default(),
            noted,
            until: None,
            has_begun: false,
            turn: None,
            aside: None,
            path,
        }
    }

    /// Notes a batch that is handed out at full speed.
    fn note(&mut self, position: Position) {
        self.position = position;
        if position > self.noted {
            let noted = self.path.check(self.path.mark().hand_out(position));
            // After an error, the next position repeats the write.
            self.noted = noted.unwrap_or(self.noted);
        }
    }

    /// Hands out the next position in probation.
    fn poll_one(
        &mut self,
        context: &mut Context<'_>,
        until: Position,
    ) -> Poll<Result<Option<Delivered>, Failure>> {
        if let Some(aside) = &mut self.aside {
            ready!(aside.keeping.as_mut().poll(context))?;
        }
        if let Some(Aside {
            position, emptied, ..
        }) = self.aside.take()
        {
            self.path.check(self.path.mark().set_aside(position));
            self.position = position;
            return Poll::Ready(Ok(Some(emptied)));
        }
        if self.position >= until && !self.path.has_active() {
            self.path.deactivate();
            self.until = None;
            return self.poll_next(context);
        }
        if self.path.has_active() {
            // The consumer has not asked for the next position yet. When it does, it polls again.
            return Poll::Pending;
        }
        let path = &self.path;
        let turn = self.turn.get_or_insert_with(|| path.turn());
        let permit = ready!(turn.as_mut().poll(context));
        self.turn = None;
        let is_deadly = self.path.begin(self.position, permit);
        let polled = self.reader.poll_next(context);
        let Poll::Ready(Ok(Some(delivered))) = polled else {
            self.path.end(false);
            return polled;
        };
        let position = delivered.position.unwrap_or(self.position);
        if position > until {
            self.path.end(true);
            self.path.deactivate();
            self.until = None;
            self.note(position);
            return Poll::Ready(Ok(Some(delivered)));
        }
        let is_aside = self.path.mark().is_aside(position);
        if is_aside || is_deadly && !self.path.mark().is_full() {
            return self.poll_aside(context, until, (position, delivered), is_aside);
        }
        self.position = position;
        Poll::Ready(Ok(Some(delivered)))
    }

    /// Sets a position aside, unless this was done (`is_aside`), and hands it out without its records.
    fn poll_aside(
        &mut self,
        context: &mut Context<'_>,
        until: Position,
        (position, delivered): (Position, Delivered),
        is_aside: bool,
    ) -> Poll<Result<Option<Delivered>, Failure>> {
        let batch = delivered.batch.clone();
        let emptied = Delivered {
            batch: emptied(delivered.batch),
            ..delivered
        };
        if is_aside {
            self.position = position;
            return Poll::Ready(Ok(Some(emptied)));
        }
        self.aside = Some(Aside {
            position,
            keeping: self.path.set_aside(position, batch),
            emptied,
        });
        self.poll_one(context, until)
    }
}

impl Reader for Gate {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        self.path.end(false);
        (self.turn, self.aside) = (None, None);
        self.reader.resume(after)?;
        self.position = after.or_else(|| self.reader.settled()).unwrap_or_default();
        self.path.check(self.path.mark().settle(self.position));
        if !std::mem::replace(&mut self.has_begun, true) {
            let kept = self
                .reader
                .bounds()
                .map_or(self.noted, |bounds| bounds.kept);
            let until = self.noted.min(kept);
            if until > self.position {
                self.path.activate(self.position, until);
                self.until = Some(until);
            }
        }
        Ok(())
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        if let Some(until) = self.until {
            return self.poll_one(context, until);
        }
        let polled = self.reader.poll_next(context);
        if let Poll::Ready(Ok(Some(Delivered {
            position: Some(position),
            ..
        }))) = &polled
        {
            self.note(*position);
        }
        polled
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.reader.commit(position)?;
        self.path.settled();
        if self.until.is_some() {
            self.path.check(self.path.mark().settle(position));
        }
        Ok(())
    }

    fn settled(&self) -> Option<Position> {
        self.reader.settled()
    }

    fn bounds(&self) -> Option<Bounds> {
        self.reader.bounds()
    }

    fn hurry(&self) -> bool {
        self.reader.hurry()
    }
}

/// Reads a chain behind a [`Gate`]. When the consumer asks for more, it is done with the position that it got last.
pub(crate) struct Watched {
    chain: ChainReader,
    path: Arc<Path>,
    /// Whether the consumer has the whole output of the active position.
    is_out: bool,
}

impl Watched {
    pub(crate) fn new(chain: ChainReader, path: Arc<Path>) -> Self {
        Self {
            chain,
            path,
            is_out: false,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.path.close();
    }
}

impl Reader for Watched {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        self.is_out = false;
        self.chain.resume(after)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        if !self.path.is_on_probation() {
            return self.chain.poll_next(context);
        }
        if std::mem::take(&mut self.is_out) {
            self.path.end(true);
        }
        let polled = self.chain.poll_next(context);
        self.path.set_threads(self.chain.has_threads());
        if let Poll::Ready(Ok(Some(delivered))) = &polled {
            self.path.leave_chain();
            self.is_out = delivered.last;
        }
        polled
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.chain.commit(position)
    }

    fn settled(&self) -> Option<Position> {
        self.chain.settled()
    }

    fn bounds(&self) -> Option<Bounds> {
        self.chain.bounds()
    }

    fn hurry(&self) -> bool {
        self.chain.hurry()
    }
}
