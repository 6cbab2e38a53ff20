//! Every order in which three ranks agree on a view, with deaths at each step: the steps are the ledger's own, one at a time.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::*;

/// Where a rank that goes on may die, in this order. It may have no view to decide.
pub(in crate::runtime) const POINTS: [&str; 7] =
    ["idle", "deciding", "decided", "gathered", "renewed", "cleared", "agreed"];

/// Where this process dies.
pub(in crate::runtime) static DIES: OnceLock<&str> = OnceLock::new();

/// Ends this process at the point where a test says so, or after it, without a destructor.
pub(in crate::runtime) fn reach(point: &str) {
    let number = |point: &str| POINTS.iter().position(|other| *other == point).unwrap();
    if DIES.get().is_some_and(|dies| number(dies) <= number(point)) {
        std::process::abort();
    }
}

const OF: usize = 3;

/// Where a rank is in `World::go_on` and `World::begin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Its launches run.
    Running,
    /// A wait of its kernels expired.
    Calls,
    /// It comes to a step, and looks at it.
    Comes(Step),
    Looks(Step),
    /// It decides to go on without some ranks.
    Decides(u64),
    /// It shares fresh memory with the others, or hears that flags of all are clear: by messages, which all send.
    Sends(Step),
    Hears(Step),
    /// It runs, or hears that another one does not.
    Begins(bool),
    /// The others go on without it.
    Left,
    /// It is there and does nothing more.
    Stopped,
    Dead,
}

/// The bit of what a rank sends in a view: of fresh memory, which follows [`Step::Idle`], and of clear flags.
fn message(view: u32, step: Step) -> u32 {
    step as u32 * 2u32.pow(2 * view)
}

impl std::hash::Hash for Step {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (*self as u8).hash(state);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rank {
    at: At,
    /// Number and mask of the view that it knows.
    view: (u32, u64),
    /// The messages that it sent, as a mask.
    sent: u32,
}

/// Ranks and what of the page they use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State<const VIEWS: usize> {
    ranks: [Rank; OF],
    views: [u64; VIEWS],
    steps: [u64; OF],
    blamed: [u64; OF],
    /// How many may still die, or stop.
    deaths: u32,
}

/// What may happen beside deaths.
#[derive(Clone, Copy, Debug)]
struct May {
    /// Ranks wait for others in vain that only are slow, until the deadline.
    expire: bool,
    /// Ranks stop.
    stop: bool,
    /// Ranks name others for which they waited in vain.
    blame: bool,
}

struct Explorer<const VIEWS: usize> {
    ledgers: [Ledger; OF],
    may: May,
    /// States, by number, and what follows each.
    numbers: HashMap<State<VIEWS>, usize>,
    states: Vec<State<VIEWS>>,
    next: Vec<Vec<usize>>,
}

impl<const VIEWS: usize> Explorer<VIEWS> {
    /// All states that a world of three ranks comes to.
    fn explored(deaths: u32, may: May) -> Explorer<VIEWS> {
        let file = Ledger::create((1 << OF) - 1).unwrap();
        let ledgers = [0, 1, 2].map(|rank| Ledger::open(file.try_clone().unwrap(), rank).unwrap());
        let all = (1 << OF) - 1;
        let ranks = [Rank { at: At::Running, view: (0, all), sent: 0 }; OF];
        let mut views = [0; VIEWS];
        views[0] = all;
        let first = State { ranks, views, steps: [0; OF], blamed: [0; OF], deaths };
        let (numbers, states, next) = (HashMap::new(), vec![], vec![]);
        let mut explorer = Explorer { ledgers, may, numbers, states, next };
        explorer.number(first);
        let mut at = 0;
        while at < explorer.states.len() {
            let state = explorer.states[at];
            explorer.is_safe(&state);
            let mut next = vec![];
            (0..OF).for_each(|rank| explorer.step(&state, rank, &mut next));
            let next = next.into_iter().map(|to| explorer.number(to)).filter(|to| *to != at).collect();
            explorer.next.push(next);
            at += 1;
        }
        explorer
    }

    fn number(&mut self, state: State<VIEWS>) -> usize {
        let next = self.states.len();
        let number = *self.numbers.entry(state).or_insert(next);
        if number == next {
            self.states.push(state);
        }
        number
    }

    /// Writes the page.
    fn load(&self, state: &State<VIEWS>) {
        let page = self.ledgers[0].page();
        for (at, view) in page.views.iter().zip(state.views) {
            at.store(view, Ordering::SeqCst);
        }
        for rank in 0..OF {
            page.steps[rank].store(state.steps[rank], Ordering::SeqCst);
            page.blamed[rank].store(state.blamed[rank], Ordering::SeqCst);
        }
    }

    /// What follows where a rank is somewhere else, as the page is by now, which is then as before.
    fn with(&self, state: &State<VIEWS>, rank: usize, new: Rank) -> State<VIEWS> {
        let page = self.ledgers[0].page();
        let mut to = *state;
        to.ranks[rank] = new;
        for (at, view) in to.views.iter_mut().zip(&page.views) {
            *at = view.load(Ordering::SeqCst);
        }
        for of in 0..OF {
            to.steps[of] = page.steps[of].load(Ordering::SeqCst);
            to.blamed[of] = page.blamed[of].load(Ordering::SeqCst);
        }
        self.load(state);
        to
    }

    /// All that a rank may do next.
    fn step(&self, state: &State<VIEWS>, rank: usize, next: &mut Vec<State<VIEWS>>) {
        let (ledger, own) = (&self.ledgers[rank], state.ranks[rank]);
        let view = View { number: own.view.0, active: own.view.1 };
        let others = |is: &dyn Fn(&Rank) -> bool| {
            let of = (0..OF).filter(|&of| of != rank && view.has(of as u32) && is(&state.ranks[of]));
            of.fold(0u64, |mask, of| mask | 1 << of)
        };
        let go = |at: At| self.with(state, rank, Rank { at, ..own });
        let by_last = || {
            let (at, last) = match ledger.way(view.number) {
                Way::Left => (At::Left, ledger.view()),
                Way::Meet(last) => (At::Comes(Step::Idle), last),
                Way::Renew(last) => (At::Sends(Step::Idle), last),
            };
            self.with(state, rank, Rank { at, view: (last.number, last.active), ..own })
        };
        self.load(state);
        if state.deaths > 0 && !matches!(own.at, At::Left | At::Stopped | At::Dead) {
            next.push(State { deaths: state.deaths - 1, ..go(At::Dead) });
            if self.may.stop {
                next.push(State { deaths: state.deaths - 1, ..go(At::Stopped) });
            }
        }
        let still = others(&|other| matches!(other.at, At::Stopped | At::Dead));
        match own.at {
            At::Left | At::Stopped | At::Dead => {}
            At::Running => {
                // Kernels wait for what another one does not send.
                let idle = others(&|other| other.at != At::Running || other.view != own.view);
                if idle != 0 || self.may.expire {
                    next.push(go(At::Calls));
                }
                for of in (0..OF).filter(|of| self.may.blame && idle >> of & 1 != 0) {
                    ledger.blame(1 << of);
                    next.push(go(At::Calls));
                }
            }
            At::Calls => next.push(by_last()),
            At::Comes(step) => {
                ledger.come(view, step);
                next.push(go(At::Looks(step)));
            }
            At::Looks(step) => {
                // Only some of the processes that are gone may be known.
                for lost in [0, others(&|other| other.at == At::Dead)] {
                    next.push(match ledger.look(view, step, lost) {
                        Look::Ended(Met::All) if step == Step::Idle => go(At::Decides(0)),
                        Look::Ended(Met::All) => go(At::Sends(Step::Renewed)),
                        Look::Ended(Met::Changed) => by_last(),
                        Look::Ended(Met::Missing(missing)) => go(At::Decides(missing)),
                        // The deadline passes where a rank does nothing.
                        Look::Waits { missing, are_suspects }
                            if are_suspects || self.may.expire || missing & !still == 0 =>
                        {
                            go(At::Decides(missing))
                        }
                        Look::Waits { .. } => continue,
                    });
                }
            }
            // Views beyond those of the page are not explored.
            At::Decides(_) if view.number as usize + 1 == VIEWS => {}
            At::Decides(missing) => {
                ledger.decide(view, view.active & !missing);
                next.push(by_last());
            }
            At::Sends(step) => {
                let own = Rank { at: At::Hears(step), sent: own.sent | message(view.number, step), ..own };
                next.push(self.with(state, rank, own));
            }
            At::Hears(step) => {
                let silent = others(&|other| other.sent & message(view.number, step) == 0);
                // Of a process that is gone all that it sent may be heard, or nothing can be sent to it any more.
                let broken = others(&|other| match other.at {
                    At::Dead | At::Left => true,
                    _ => other.sent >= message(view.number + 1, Step::Idle) || other.view.1 >> rank & 1 == 0,
                });
                let is_first = step == Step::Idle;
                if silent == 0 {
                    next.push(go(if is_first { At::Comes(Step::Renewed) } else { At::Begins(true) }));
                }
                if broken != 0 || silent & still != 0 || silent != 0 && self.may.expire {
                    next.push(go(if is_first { At::Calls } else { At::Begins(false) }));
                }
            }
            At::Begins(well) => {
                ledger.runs(view);
                next.push(go(if well { At::Running } else { At::Calls }));
            }
        }
    }

    /// What holds in every state.
    fn is_safe(&self, state: &State<VIEWS>) {
        let decided = state.views.iter().take_while(|view| **view != 0).count();
        for (before, after) in state.views.iter().zip(&state.views[1..decided]) {
            assert_eq!(after & !before, 0, "a view has no rank that the one before has not: {state:?}");
        }
        let mut run_by = None;
        for (rank, own) in state.ranks.iter().enumerate() {
            let (number, mask) = own.view;
            assert_eq!(state.views[number as usize], mask, "a view is the same to all ranks: {state:?}");
            assert_eq!(
                mask >> rank & 1 == 0,
                own.at == At::Left,
                "a rank that goes on is in its view: {state:?}"
            );
            // A world runs where each of its ranks does.
            let runs = |of: usize| state.ranks[of].at == At::Running && state.ranks[of].view == own.view;
            if own.at == At::Running && (0..OF).filter(|of| mask >> of & 1 != 0).all(runs) {
                assert_eq!(*run_by.get_or_insert(own.view), own.view, "two worlds run: {state:?}");
                assert_eq!(number as usize + 1, decided, "a world runs after a later view: {state:?}");
                let blamed = (0..OF).filter(|of| mask >> of & 1 != 0 && state.blamed[*of] != 0);
                assert_eq!(blamed.count(), 0, "a world runs, and ranks still name others: {state:?}");
            }
        }
    }

    /// Whether all that are alive have come where they are to come: those of the last view run, and the others left.
    fn is_over(&self, state: &State<VIEWS>) -> bool {
        let decided = state.views.iter().take_while(|view| **view != 0).count();
        let last = (decided as u32 - 1, state.views[decided - 1]);
        let alive: Vec<&Rank> =
            state.ranks.iter().filter(|rank| !matches!(rank.at, At::Stopped | At::Dead)).collect();
        let run: Vec<_> = alive.iter().filter(|rank| rank.at == At::Running && rank.view == last).collect();
        let left = alive.iter().filter(|rank| rank.at == At::Left).count();
        run.len() + left == alive.len() && (run.len() as u32 == last.1.count_ones() || run.is_empty())
    }

    /// States from which ranks come to no end, where two more views may be decided.
    fn stuck(&self) -> Vec<usize> {
        let mut before = vec![vec![]; self.states.len()];
        for (from, all) in self.next.iter().enumerate() {
            all.iter().for_each(|to| before[*to].push(from));
        }
        let is_end = |at: &usize| self.is_over(&self.states[*at]);
        let mut ends: Vec<usize> = (0..self.states.len()).filter(is_end).collect();
        let mut ending = vec![false; self.states.len()];
        ends.iter().for_each(|at| ending[*at] = true);
        while let Some(at) = ends.pop() {
            for from in std::mem::take(&mut before[at]) {
                if !std::mem::replace(&mut ending[from], true) {
                    ends.push(from);
                }
            }
        }
        let has_more = |at: &usize| self.states[*at].views[VIEWS - 2] == 0;
        (0..self.states.len()).filter(|at| !ending[*at]).filter(has_more).collect()
    }
}

const NEITHER: May = May { expire: false, stop: false, blame: false };

impl<const VIEWS: usize> Explorer<VIEWS> {
    #[track_caller]
    fn ends_well(&self) {
        let stuck = self.stuck();
        let first = stuck.first().map(|at| self.states[*at]);
        assert!(stuck.is_empty(), "{} of {}: {first:?}", stuck.len(), self.states.len());
    }

    /// Whether a rank that is alive is left behind in some order.
    fn leaves_some(&self) -> bool {
        self.states.iter().any(|state| state.ranks.iter().any(|rank| rank.at == At::Left))
    }
}

#[test]
fn ranks_agree_in_every_order_and_after_every_death() {
    let explored = Explorer::<4>::explored(2, NEITHER);
    explored.ends_well();
    assert!(!explored.leaves_some(), "all that are alive go on");
    Explorer::<4>::explored(2, May { stop: true, blame: true, ..NEITHER }).ends_well();
}

/// A rank that does not come in time reads it from the page and goes on or leaves, also if the rank that wrote it died.
#[test]
fn ranks_that_are_slow_go_on_or_leave() {
    let explored = Explorer::<3>::explored(1, May { expire: true, ..NEITHER });
    explored.ends_well();
    assert!(explored.leaves_some());
}

/// Ranks that run have to come again; those that are lost are not waited for, and those that one names not long.
#[test]
fn a_look_shows_which_ranks_are_awaited() {
    let file = Ledger::create(0b111).unwrap();
    let ranks = [0, 1, 2].map(|rank| Ledger::open(file.try_clone().unwrap(), rank).unwrap());
    let view = ranks[0].view();
    let waits = |missing, are_suspects| Look::Waits { missing, are_suspects };
    ranks.iter().for_each(|rank| rank.come(view, Step::Renewed));
    assert_eq!(ranks[0].look(view, Step::Renewed, 0), Look::Ended(Met::All));
    ranks.iter().for_each(|rank| rank.runs(view));
    ranks[0].come(view, Step::Idle);
    assert_eq!(ranks[0].look(view, Step::Idle, 0), waits(0b110, false));
    assert_eq!(ranks[0].look(view, Step::Idle, 0b100), waits(0b110, false));
    assert_eq!(ranks[0].look(view, Step::Idle, 0b110), Look::Ended(Met::Missing(0b110)));
    // Only ranks that came are believed.
    ranks[1].blame(0b100);
    assert_eq!(ranks[0].look(view, Step::Idle, 0b010), waits(0b110, false));
    ranks[1].come(view, Step::Idle);
    assert_eq!(ranks[0].look(view, Step::Idle, 0), waits(0b100, true));
    let begun = std::time::Instant::now();
    let met = ranks[0].meet(view, Step::Idle, || 0, &Deadline::after(Duration::from_secs(20)));
    assert_eq!((met, begun.elapsed() >= GRACE), (Met::Missing(0b100), true));
    let next = ranks[1].decide(view, 0b011).unwrap();
    assert_eq!(ranks[0].look(view, Step::Idle, 0), Look::Ended(Met::Changed));
    assert_eq!(
        [0, 1, 2].map(|rank: usize| ranks[rank].way(0)),
        [Way::Renew(next), Way::Renew(next), Way::Left]
    );
    assert_eq!(ranks[0].way(1), Way::Meet(next));
    assert_eq!(ranks[2].decide(view, 0b111), Some(next), "the first that decides does for all");
    ranks[1].runs(next);
    ranks[0].come(next, Step::Idle);
    assert_eq!(ranks[0].look(next, Step::Idle, 0), waits(0b010, false), "what was named is over");
}
