//! Flights: what cards do by themselves, in an order that the seed decides.

use super::{CounterAt, Flight, Stretch};
use crate::sim::schedule::turns::{Delivery, Task};
use crate::sim::schedule::world::World;

impl World<'_> {
    /// Lets a flight go on now and then, as the scheduler says.
    pub fn fly_by_chance(&mut self) {
        if self.far.flights.is_empty() {
            return;
        }
        match self.sched.delivery {
            Delivery::Random { one_in } | Delivery::Newest { one_in } => {
                if self.sched.chance(one_in) {
                    self.fly_one();
                }
            }
            Delivery::Held => {}
        }
    }

    /// Lets some flight go on by a step. Returns whether there is one.
    pub fn fly_one(&mut self) -> bool {
        if self.far.flights.is_empty() {
            return false;
        }
        let flights = self.far.flights.len();
        let at = match self.sched.delivery {
            Delivery::Random { .. } | Delivery::Held => self.sched.below(flights),
            Delivery::Newest { .. } => flights - 1,
        };
        match self.far.flights[at] {
            Flight::Put(put) => self.fly_put(put),
            Flight::Publish(number) => {
                let behind = &self.far.publishes[number].behind;
                match behind.iter().find(|&&put| !self.far.puts[put].has_arrived()) {
                    Some(&put) => self.fly_put(put),
                    None => {
                        self.far.flights.swap_remove(at);
                        let (counter, adds) = {
                            let publish = &self.far.publishes[number];
                            (publish.counter, publish.adds)
                        };
                        self.far_arrive(counter, adds);
                    }
                }
            }
        }
        true
    }

    /// A put reads a piece, or a piece lands.
    fn fly_put(&mut self, number: usize) {
        let put = &self.far.puts[number];
        let (unread, read) = (put.unread.len(), put.read.len());
        let reads = unread > 0 && (read == 0 || self.sched.chance(2));
        let piece = self.sched.below(if reads { unread } else { read.max(1) });
        let put = &mut self.far.puts[number];
        if reads {
            let (from, to) = put.unread.swap_remove(piece);
            let Stretch { rank, buffer, at } = put.source;
            let there = self.memory[rank][buffer].bytes()[(at + from) as usize..(at + to) as usize].to_vec();
            put.read.push((from, there));
            if put.is_complete() {
                let settling = std::mem::take(&mut self.far.settling);
                self.far_wake(settling);
            }
            return;
        }
        if piece < read {
            let (from, there) = put.read.swap_remove(piece);
            let Stretch { rank, buffer, at } = put.target;
            let to = (at + from) as usize;
            self.memory[rank][buffer].bytes_mut()[to..to + there.len()].copy_from_slice(&there);
        }
        let put = &self.far.puts[number];
        if put.has_arrived() {
            let (counter, counted) = (put.counter, put.counted);
            self.far.flights.retain(|flight| !matches!(flight, Flight::Put(of) if *of == number));
            if counted {
                self.far_arrive(counter, 1);
            }
        }
    }

    fn far_arrive(&mut self, counter: CounterAt, adds: u64) {
        let counter = self.far.counters.entry(counter).or_default();
        counter.arrived += adds;
        let waiting = std::mem::take(&mut counter.waiting);
        self.far_wake(waiting);
    }

    fn far_wake(&mut self, waiting: Vec<u32>) {
        for id in waiting {
            if let Some(agent) = self.agents.get(id) {
                self.sched.ready(Task::Agent(id), agent.priority);
            }
        }
    }
}
