//! `millstream top`: nodes with their rates and backlogs, refreshed each second in a terminal.

mod screen;
mod table;

use std::{
    io::{IsTerminal, stdin, stdout},
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::Value;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Interval, MissedTickBehavior, interval_at},
};

use super::instance::Remote;
use crate::{client::Client, config, exit, page, visible::visible};
use screen::{Key, Screen};
use table::{Size, View};

/// The default interval between two samples.
const INTERVAL: &str = "1s";

/// Show nodes, rates, backlogs and errors of the running instance, refreshed each second.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream top                               the instance of /etc/millstream
  millstream top --url https://agg-1:8688 --token-file ops.token
  millstream top | cat                         one table, without a terminal

The columns: REC/S and BYTES/S are the records and bytes per second that leave a source or enter another node; WAITING are records that are \
not kept or settled yet or, for a channel and a sink that reads it, bytes that are not delivered; FULL is how full a channel is, and when it \
or its disk is full if both go on as in the last minute; LAG is the age of the oldest record that a channel or sink has not settled; ERRORS are records that were rejected or could not be processed.

Keys: arrows, j, k scroll; q and Ctrl-C end it.

Exit codes: 0 done, 1 no instance answers, 78 wrong configuration")]
pub struct Top {
    /// Configuration files and directories of the instance; only `api.listen` and `api.tls` are taken from them.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    #[command(flatten)]
    remote: Remote,
    /// The time between two samples.
    #[arg(long, default_value = INTERVAL, value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = config::period(text)?;
    match interval >= Duration::from_millis(100) {
        true => Ok(interval),
        false => Err("must be at least 100ms".to_owned()),
    }
}

/// A status, and when it was requested.
#[derive(Clone)]
struct Shot {
    status: Value,
    time: Instant,
}

impl Shot {
    fn take(client: &Client) -> Result<Self, String> {
        let time = Instant::now();
        client.get("/status").map(|status| Self { status, time })
    }
}

impl Top {
    /// Shows the nodes; returns the exit code.
    pub fn execute(self) -> u8 {
        let client = match self.remote.client(&self.config) {
            Ok(client) => client,
            Err(code) => return code,
        };
        let first = match Shot::take(&client) {
            Ok(first) => first,
            Err(text) => return page::complain(&text, exit::FAILED),
        };
        match stdin().is_terminal() && stdout().is_terminal() {
            true => self.watch(client, first),
            false => self.once(&client, &first),
        }
    }

    fn once(&self, client: &Client, before: &Shot) -> u8 {
        std::thread::sleep(self.interval);
        match Shot::take(client) {
            Ok(now) => {
                let lines = view(before, &now).lines(Size::UNBOUNDED, 0);
                page::print(&plain(&lines))
            }
            Err(text) => page::complain(&text, exit::FAILED),
        }
    }

    /// Refreshes the screen until a key or a signal ends the program.
    fn watch(&self, client: Client, first: Shot) -> u8 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let ended = runtime.and_then(|runtime| {
            let ended = runtime.block_on(async {
                let mut screen = Screen::open()?;
                let asking = Asking::new(client, self.interval);
                watch(&mut screen, asking, first).await
            });
            // Does not wait for a request in flight, because the instance may not answer.
            runtime.shutdown_background();
            ended
        });
        match ended {
            Ok(()) => exit::DRAINED,
            Err(error) => page::complain(
                &format!("the terminal cannot be used: {error}"),
                exit::FAILED,
            ),
        }
    }
}

/// Returns the lines without the leading characters that select a style. Text from a node cannot start a new line.
fn plain(lines: &[String]) -> String {
    let line = |line: &String| format!("{}\n", visible(line.trim_start_matches(['\t', '\x07'])));
    lines.iter().map(line).collect()
}

fn view<'a>(before: &'a Shot, now: &'a Shot) -> View<'a> {
    View {
        before: &before.status,
        now: &now.status,
        time: now.time.duration_since(before.time),
    }
}

/// Polls an instance for its status.
struct Asking {
    client: Client,
    ticks: Interval,
    answer: Option<JoinHandle<Result<Shot, String>>>,
}

impl Asking {
    fn new(client: Client, interval: Duration) -> Self {
        let mut ticks = interval_at(tokio::time::Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            client,
            ticks,
            answer: None,
        }
    }

    /// The next answer. Cancel safe: if a key interrupts the wait, a request in flight continues, and the next call
    /// waits for its answer.
    async fn next(&mut self) -> Result<Shot, String> {
        let answer = match &mut self.answer {
            Some(answer) => answer,
            None => {
                self.ticks.tick().await;
                let client = self.client.clone();
                self.answer
                    .insert(spawn_blocking(move || Shot::take(&client)))
            }
        };
        let shot = answer.await;
        self.answer = None;
        shot.map_err(|error| error.to_string()).flatten()
    }
}

async fn watch(screen: &mut Screen, mut asking: Asking, first: Shot) -> std::io::Result<()> {
    let (mut before, mut now, mut trouble) = (first.clone(), first, None);
    let mut scrolled = 0_usize;
    loop {
        let size = screen.size();
        let mut lines = view(&before, &now).lines(size, scrolled);
        if let Some(trouble) = &trouble {
            lines.insert(0, format!("\x07{trouble}"));
        }
        screen.draw(&lines, size)?;
        tokio::select! {
            shot = asking.next() => match shot {
                Ok(new) => {
                    before = std::mem::replace(&mut now, new);
                    trouble = None;
                }
                Err(text) => trouble = Some(text),
            },
            key = screen.key() => match key {
                Key::End => return Ok(()),
                Key::Up => scrolled = scrolled.saturating_sub(1),
                Key::Down => scrolled = (scrolled + 1).min(view(&before, &now).rows().saturating_sub(1)),
                Key::Other => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpListener,
    };

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn plain_lines_have_no_style_characters_and_no_further_line_breaks() {
        let lines = ["\tNODE", "\x07bus failed: refused\nin  running"];
        assert_eq!(
            plain(&lines.map(str::to_owned)),
            "NODE\nbus failed: refused\\nin  running\n"
        );
    }

    #[tokio::test]
    async fn keys_do_not_wait_for_an_instance_that_hangs() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client {
            address: listener.local_addr().unwrap().to_string(),
            tls: None,
            token: None,
        };
        let mut asking = Asking::new(client, Duration::from_millis(1));
        for _ in 0..3 {
            let key = timeout(Duration::from_millis(50), asking.next());
            assert!(key.await.is_err(), "a key comes before the answer");
        }
        let (mut stream, _) = listener.accept().unwrap();
        let request = BufReader::new(&stream).lines().map(Result::unwrap);
        assert!(request.take_while(|line| !line.is_empty()).count() > 0);
        stream
            .write_all(b"HTTP/1.0 200 OK\r\n\r\n{\"pid\": 7}")
            .unwrap();
        drop(stream);
        let shot = asking.next().await.unwrap();
        assert_eq!(shot.status["pid"], 7);
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "it asks once at a time");
    }
}
