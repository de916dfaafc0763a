//! Threads that are the ranks of a measurement.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::Failure;
use super::case::Case;

/// One rank, made and used on its thread.
pub(crate) trait Rank {
    /// Allocates the buffers of a case, runs it once and verifies the result.
    fn prepare(&mut self, case: Case) -> Result<(), Failure>;

    /// Runs the case so many times, beginning when all ranks are there, and returns the time.
    fn time(&mut self, calls: u64) -> Result<Duration, Failure>;
}

enum Order {
    Prepare(Case),
    Time(u64),
}

type Answer = Result<Duration, String>;

/// All ranks.
pub(crate) struct Team {
    pub(crate) description: String,
    orders: Vec<Sender<Order>>,
    answers: Receiver<Answer>,
}

impl Team {
    /// Starts a thread for each rank, which makes its rank there.
    pub(crate) fn start<R: Rank>(
        ranks: Vec<impl FnOnce() -> Result<(R, String), Failure> + Send + 'static>,
    ) -> Result<Self, Failure> {
        let (answer, answers) = channel();
        let (describe, descriptions) = channel();
        let mut orders = Vec::new();
        for make in ranks {
            let (order, from) = channel();
            let (answer, describe) = (answer.clone(), describe.clone());
            orders.push(order);
            thread::spawn(move || match make() {
                Ok((rank, description)) => {
                    let _ = describe.send(Ok(description));
                    serve(rank, &from, &answer);
                }
                Err(error) => {
                    let _ = describe.send(Err(error));
                }
            });
        }
        let mut description = String::new();
        for _ in 0..orders.len() {
            description = descriptions.recv()??;
        }
        Ok(Self { description, orders, answers })
    }

    pub(crate) fn ranks(&self) -> usize {
        self.orders.len()
    }

    pub(crate) fn prepare(&mut self, case: Case) -> Result<(), Failure> {
        self.all(|| Order::Prepare(case)).map(drop)
    }

    /// Time of the slowest rank.
    pub(crate) fn time(&mut self, calls: u64) -> Result<Duration, Failure> {
        self.all(|| Order::Time(calls))
    }

    fn all(&mut self, order: impl Fn() -> Order) -> Result<Duration, Failure> {
        for rank in &self.orders {
            rank.send(order())?;
        }
        let mut slowest = Duration::ZERO;
        for _ in 0..self.orders.len() {
            slowest = slowest.max(self.answers.recv()??);
        }
        Ok(slowest)
    }
}

fn serve(mut rank: impl Rank, orders: &Receiver<Order>, answers: &Sender<Answer>) {
    for order in orders {
        let answer = match order {
            Order::Prepare(case) => rank.prepare(case).map(|()| Duration::ZERO),
            Order::Time(calls) => rank.time(calls),
        };
        let is_failed = answer.is_err();
        if answers.send(answer.map_err(|error| error.to_string())).is_err() || is_failed {
            return;
        }
    }
}
