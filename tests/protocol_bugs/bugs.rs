//! The bugs, by what they are planted in.

use peerwarp::codegen::ir::mutate::{Access, Site, Slot};
use peerwarp::families::moe::kernels::{Layout, Protocol};

use super::plant::*;

const ROW_PUT: Line = wire("self.row.field(self.rows.row).put(");
const ROW_SIGNAL: Line = wire("self.row.done();");
const ROW_WAIT: Line = wire("rows.from(source).slot(slot)");
const ROW_LOAD: Line = wire("message.field(self.rows.row).load(");
const ROW_STORE: Line = deliver("rows.store(at(");
const RECORD_SIGNAL: Line = wire("parcel.signal(&a.rec_flag");
const RECORD_WAIT: Line = wire("self.rec_flag.wait_all(");
const COUNT_PUT: Line = wire("parcel.put(&self.a.rec_count");
const COUNT_LOAD: Line = wire("count.gather(arrived");
const N_SEND: Line = wire("a.ll_n.send(self.to, ");
const N_READ: Line = wire("a.ll_n.gather(record + l.bank");
const READY_WAIT: Line = wire("ready.wait_all(");
const READY_SIGNAL: Line = wire("ready.signal(Peers::all()");
const COUNT_SEND: Line = wire("ll.send(Peers::rank(to)");
const WORDS_SEND: Line = wire("a.ll_route.send(self.to, ");
const COUNT_READ: Line = wire("count.gather(number * c.map().at_most()");
const WORDS_LOAD: Line = wire("a.rec_route.load(arrived");
const ALL_WORDS_READ: Line = wire("a.ll_route.gather(entry");
const WORDS_READ: Line = wire("a.ll_route.load(at_entry");
const GATHER_STORE: Line = rank_major("gather.scatter(row");
const FEW_GATHER_STORE: Line = rank_major("gather.scatter(place");
const RETURN_PUT: Line = outputs("to.put_f32(start");
const ROW_COPY: Line = send("field(open.rows.row).copy(");
const RETURN_COPY: Line = outputs("to.copy(");
const RETURN_SIGNAL: Line = send_back("row.done();");
const RETURN_WAIT: Line = send_back("rows.slot(token)");
const BATCH_WAIT: Line = send_back("rows.batch(token / self.0.batch, token)");
const RETURN_LOAD: Line = sums("rows.field(back.row).load_each(first");
const ENTRIES_READ: Line = round_trip("a.entries.load(");
const ANSWER: Line = returned("to.row.put_f32(start");
const ROW_SEND_BACK: Line = outputs("to.put(start");

pub fn bugs_with_flags() -> Vec<Bug> {
    let protocol = Protocol::Flags;
    let bug = |kernel, name, plant, kind, role, line| {
        let layout = Layout::ExpertMajor;
        Bug { name, kernel, protocol, layout, plant, kind, role, line }
    };
    let d = |name, plant, kind, role, line| bug("dispatch", name, plant, kind, role, line);
    let c = |name, plant, kind, role, line| bug("combine", name, plant, kind, role, line);
    let row_signal = || Site::signal("send", "row_flag");
    let row_wait = || Site::wait("recv", "row_flag");
    let rec_wait = || Site::wait("recv", "rec_flag");
    let return_signal = || Site::signal("send", "return_flag");
    let return_wait = || Site::wait("recv", "return_flag");
    vec![
        // Missing release.
        d("rows without release", relax("send", "row_flag"), "data-race", "recv", ROW_LOAD),
        d("records without release", relax("route", "rec_flag"), "data-race", "recv", COUNT_LOAD),
        c("returns without release", relax("send", "return_flag"), "data-race", "recv", RETURN_LOAD),
        // Wait for the wrong epoch.
        d("wait for old row", offset(row_wait(), Slot::Value, -1), "epoch-confusion", "recv", ROW_WAIT),
        d("wait for future records", offset(rec_wait(), Slot::Value, 1), "deadlock", "recv", RECORD_WAIT),
        c(
            "wait for old return",
            offset(return_wait(), Slot::Value, -1),
            "epoch-confusion",
            "recv",
            RETURN_WAIT,
        ),
        // Flag before data.
        d("row flag first", signal_first("send", "row_flag"), "data-race", "send", ROW_PUT),
        d("record flag first", signal_first("route", "rec_flag"), "data-race", "route", COUNT_PUT),
        c("return flag first", signal_first("send", "return_flag"), "data-race", "send", RETURN_PUT),
        // Flag to the wrong slot, to the wrong rank, to no rank.
        d("flag of the next row", offset(row_signal(), Slot::Index, 1), "deadlock", "recv", ROW_WAIT),
        c(
            "flag of the next return",
            offset(return_signal(), Slot::Index, 1),
            "deadlock",
            "recv",
            RETURN_WAIT,
        ),
        c(
            "returns to rank 0",
            replace(return_signal(), Slot::Target, 0),
            "doubled-signal",
            "send",
            RETURN_SIGNAL,
        ),
        d("row flag to all", replace(row_signal(), Slot::Target, 7), "unwaited-signal", "send", ROW_SIGNAL),
        d("no row flag", leave_out(row_signal()), "deadlock", "recv", ROW_WAIT),
        // Missing wait.
        d("no wait for rows", leave_out(row_wait()), "data-race", "recv", ROW_LOAD),
        d("no wait for records", leave_out(rec_wait()), "uninitialized-read", "recv", COUNT_LOAD),
        c("no wait for returns", leave_out(return_wait()), "data-race", "recv", RETURN_LOAD),
        d("a record not waited for", offset(rec_wait(), Slot::Count, -1), "data-race", "recv", COUNT_LOAD),
        // Buffers used again an epoch early.
        d("one copy of records", one_bank(), "data-race", "route", COUNT_PUT),
        d("dispatch keeps its epoch", keep_epoch(), "doubled-signal", "route", RECORD_SIGNAL),
        c("combine keeps its epoch", keep_epoch(), "doubled-signal", "send", RETURN_SIGNAL),
        // Counts off by one, slots out of range.
        d(
            "row flag out of range",
            offset(Site::wait("recv", "row_flag"), Slot::Index, 80),
            "out-of-bounds",
            "recv",
            ROW_WAIT,
        ),
        d(
            "entries are all counted for one expert",
            replace(Site::new("route", Access::Atomic, "count"), Slot::Index, 0),
            "data-race",
            "recv",
            ROW_STORE,
        ),
        d(
            "row out of range",
            offset(Site::put("send", "inbox"), Slot::Index, 80),
            "out-of-bounds",
            "send",
            ROW_PUT,
        ),
        c(
            "return out of range",
            offset(Site::put("send", "returns"), Slot::Index, 200),
            "out-of-bounds",
            "send",
            RETURN_PUT,
        ),
        // Acknowledgements that are left out.
        d("a rank without tokens is silent", record_only_if("n"), "deadlock", "recv", RECORD_WAIT),
        d("no record of an empty chunk", record_only_if("used"), "deadlock", "recv", RECORD_WAIT),
        // Two writers of one slot.
        d(
            "all rows to slot 0",
            replace(Site::put("send", "inbox"), Slot::Index, 0),
            "data-race",
            "send",
            ROW_PUT,
        ),
        c(
            "all returns to slot 0",
            replace(Site::put("send", "returns"), Slot::Index, 0),
            "data-race",
            "send",
            RETURN_PUT,
        ),
        // Waiting blocks that leave no room for those they wait for.
        d("no room to send", Plant::Starve, "not-resident", "recv", RECORD_WAIT),
    ]
}

pub fn bugs_with_packets() -> Vec<Bug> {
    let protocol = Protocol::Packets;
    let bug = |kernel, name, plant, kind, role, line| {
        let layout = Layout::ExpertMajor;
        Bug { name, kernel, protocol, layout, plant, kind, role, line }
    };
    let d = |name, plant, kind, role, line| bug("dispatch", name, plant, kind, role, line);
    let c = |name, plant, kind, role, line| bug("combine", name, plant, kind, role, line);
    let (row_send, row_take) = (
        || Site::new("send", Access::Send, "inbox_packets"),
        || Site::new("recv", Access::Take, "inbox_packets"),
    );
    let words_send = || Site::new("route", Access::Send, "ll_route");
    let n_send = || Site::new("route", Access::Send, "ll_n");
    let n_read = || Site::wait("entries", "ll_n");
    let words_read = || Site::wait("recv", "ll_route");
    let return_send = || Site::new("send", Access::Send, "return_packets");
    let return_take = || Site::new("recv", Access::Take, "return_packets");
    vec![
        d("rows are not sent", leave_out(row_send()), "deadlock", "recv", ROW_LOAD),
        c("returns are not sent", leave_out(return_send()), "deadlock", "recv", RETURN_LOAD),
        d("rows to all", replace(row_send(), Slot::Target, 7), "untaken-packet", "send", ROW_PUT),
        c("returns to rank 0", replace(return_send(), Slot::Target, 0), "lost-packet", "send", RETURN_PUT),
        d("rows from the wrong rank", replace(row_take(), Slot::From, 0), "wrong-sender", "recv", ROW_LOAD),
        d("all rows to slot 0", replace(row_send(), Slot::Index, 0), "lost-packet", "send", ROW_PUT),
        c("all returns to slot 0", replace(return_send(), Slot::Index, 0), "lost-packet", "send", RETURN_PUT),
        c(
            "no block takes what comes back",
            replace(return_take(), Slot::Mask, 0),
            "lost-packet",
            "send",
            RETURN_PUT,
        ),
        c(
            "all owners are waited for",
            replace(return_take(), Slot::Mask, 7),
            "deadlock",
            "recv",
            RETURN_LOAD,
        ),
        d("rows out of range", offset(row_send(), Slot::Index, 800), "out-of-bounds", "send", ROW_PUT),
        d("no words", leave_out(words_send()), "deadlock", "recv", ALL_WORDS_READ),
        d(
            "words of the epoch before",
            offset(words_read(), Slot::Value, -1),
            "epoch-confusion",
            "recv",
            ALL_WORDS_READ,
        ),
        d(
            "records of the epoch before",
            offset(n_read(), Slot::Value, -1),
            "epoch-confusion",
            "entries",
            N_READ,
        ),
        d("records of the epoch after", offset(n_read(), Slot::Value, 1), "deadlock", "entries", N_READ),
        d("records from the wrong rank", replace(n_read(), Slot::From, 0), "wrong-sender", "entries", N_READ),
        d("records to rank 0 only", replace(n_send(), Slot::Target, 1), "deadlock", "entries", N_READ),
        d("one copy of records", one_bank(), "lost-packet", "route", N_SEND),
        d("dispatch keeps its epoch", keep_epoch(), "doubled-signal", "ready", READY_SIGNAL),
        c(
            "no block awaits who is ready",
            leave_out(Site::wait("ready", "ready")),
            "lost-packet",
            "route",
            WORDS_SEND,
        ),
        c("one copy of returns", one_bank(), "lost-packet", "send", RETURN_PUT),
        // Before a return is lost: by the third round every rank is ready for a later one than combine waits for.
        c("combine keeps its epoch", keep_epoch(), "epoch-confusion", "ready", READY_WAIT),
    ]
}

/// So many entries that their senders count them.
pub fn bugs_with_counts() -> Vec<Bug> {
    let (protocol, layout) = (Protocol::Packets, Layout::ExpertMajor);
    let bug = |kernel, name, plant, kind, role, line| Bug {
        name,
        kernel,
        protocol,
        layout,
        plant,
        kind,
        role,
        line,
    };
    let d = |name, plant, kind, role, line| bug("dispatch", name, plant, kind, role, line);
    let counts = leave_out(Site::new("route", Access::Send, "ll_count"));
    let tokens = offset(Site::wait("recv", "ll_n"), Slot::Value, -1);
    let ready = leave_out(Site::wait("ready", "ready"));
    vec![
        d("no counts", counts, "deadlock", "recv", COUNT_READ),
        d("tokens of the epoch before", tokens, "epoch-confusion", "recv", N_READ),
        bug("combine", "no block awaits who is ready for counts", ready, "lost-packet", "route", COUNT_SEND),
    ]
}

pub fn bugs_in_one_launch() -> Vec<Bug> {
    let (kernel, protocol) = ("round_trip", Protocol::Packets);
    let layout = Layout::ExpertMajor;
    let bug = |name, plant, kind, role, line| Bug { name, kernel, protocol, layout, plant, kind, role, line };
    let entries_send = || Site::new("route", Access::Send, "entries");
    let entries_read = || Site::wait("expert", "entries");
    let row_send = || Site::new("send", Access::Send, "inbox_packets");
    let answer = || Site::new("expert", Access::Send, "return_packets");
    vec![
        bug("entries are not sent", leave_out(entries_send()), "deadlock", "expert", ENTRIES_READ),
        bug(
            "entries of the epoch before",
            offset(entries_read(), Slot::Value, -1),
            "epoch-confusion",
            "expert",
            ENTRIES_READ,
        ),
        bug(
            "entries from the wrong rank",
            replace(entries_read(), Slot::From, 0),
            "wrong-sender",
            "expert",
            ENTRIES_READ,
        ),
        bug("rows are not sent", leave_out(row_send()), "deadlock", "expert", ROW_LOAD),
        bug("answers are not sent", leave_out(answer()), "deadlock", "recv", RETURN_LOAD),
        bug("answers to rank 0", replace(answer(), Slot::Target, 0), "lost-packet", "expert", ANSWER),
        bug("all answers to slot 0", replace(answer(), Slot::Index, 0), "lost-packet", "expert", ANSWER),
        bug(
            "no block awaits who is ready",
            leave_out(Site::wait("ready", "ready")),
            "lost-packet",
            "expert",
            ENTRIES_READ,
        ),
        bug("it keeps its epoch", keep_epoch(), "doubled-signal", "ready", READY_SIGNAL),
    ]
}

/// Those of what is different with rows by token.
pub fn bugs_by_token() -> Vec<Bug> {
    let bug = |(protocol, kernel, name), plant, kind, role, line| {
        let layout = Layout::RankMajor;
        Bug { name, kernel, protocol, layout, plant, kind, role, line }
    };
    let flags = |name| (Protocol::Flags, "dispatch", name);
    let packets = |name| (Protocol::Packets, "dispatch", name);
    let of_combine = |protocol, name| (protocol, "combine", name);
    let words_wait = || Site::wait("recv", "ll_route");
    let entries = || Site::new("send", Access::Load, "entry_expert");
    vec![
        bug(
            flags("no wait for the words of rows"),
            leave_out(Site::wait("recv", "rec_flag")),
            "data-race",
            "recv",
            WORDS_LOAD,
        ),
        bug(
            flags("an index of records that are not there"),
            leave_out(Site::wait("index", "rec_flag")),
            "uninitialized-read",
            "index",
            COUNT_LOAD,
        ),
        bug(
            flags("rows that no block waits for"),
            leave_out(Site::wait("recv", "row_flag")),
            "data-race",
            "send",
            ROW_PUT,
        ),
        bug(
            flags("all rows in one place"),
            replace(Site::put("send", "inbox"), Slot::Index, 0),
            "data-race",
            "send",
            ROW_PUT,
        ),
        bug(
            packets("all rows in one place"),
            replace(Site::store("recv", "rows"), Slot::Index, 0),
            "data-race",
            "recv",
            ROW_STORE,
        ),
        bug(
            flags("an index out of range"),
            offset(Site::store("index", "gather"), Slot::Index, 1000),
            "out-of-bounds",
            "index",
            GATHER_STORE,
        ),
        bug(
            of_combine(Protocol::Flags, "entries of the one before"),
            replace(entries(), Slot::Index, 0),
            "deadlock",
            "recv",
            RETURN_WAIT,
        ),
        bug(
            packets("words of the epoch before"),
            offset(words_wait(), Slot::Value, -1),
            "epoch-confusion",
            "recv",
            WORDS_READ,
        ),
        bug(
            packets("words from the wrong rank"),
            replace(words_wait(), Slot::From, 0),
            "wrong-sender",
            "recv",
            WORDS_READ,
        ),
        bug(
            packets("entries of the epoch before"),
            offset(Site::wait("entries", "ll_route"), Slot::Value, -1),
            "epoch-confusion",
            "entries",
            WORDS_READ,
        ),
        bug(
            packets("an index out of range"),
            offset(Site::store("index", "gather"), Slot::Index, 1000),
            "out-of-bounds",
            "index",
            FEW_GATHER_STORE,
        ),
        bug(
            packets("all parts of rows to rank 0"),
            replace(Site::new("send", Access::Send, "inbox_packets"), Slot::Target, 0),
            "lost-packet",
            "send",
            ROW_PUT,
        ),
        bug(
            of_combine(Protocol::Packets, "no block awaits who is ready"),
            leave_out(Site::wait("ready", "ready")),
            "lost-packet",
            "route",
            WORDS_SEND,
        ),
        bug(
            of_combine(Protocol::Packets, "all returns to slot 0"),
            replace(Site::new("send", Access::Send, "return_packets"), Slot::Index, 0),
            "lost-packet",
            "send",
            ROW_SEND_BACK,
        ),
    ]
}

/// Those of rows in bulk, with one flag for two tokens on their way back.
pub fn bugs_in_bulk() -> Vec<Bug> {
    let bug = |kernel, name, plant, kind, role, line| {
        let (protocol, layout) = (Protocol::Bulk, Layout::RankMajor);
        Bug { name, kernel, protocol, layout, plant, kind, role, line }
    };
    let d = |name, plant, kind, role, line| bug("dispatch", name, plant, kind, role, line);
    let c = |name, plant, kind, role, line| bug("combine", name, plant, kind, role, line);
    let return_signal = || Site::signal("send", "return_flag");
    vec![
        d("row flag before its copy", signal_first("send", "row_flag"), "data-race", "send", ROW_COPY),
        d(
            "a copy to the wrong place",
            replace(Site::put("send", "inbox"), Slot::Index, 0),
            "data-race",
            "send",
            ROW_COPY,
        ),
        c("flag before the batch", signal_first("send", "return_flag"), "data-race", "send", RETURN_COPY),
        c("batches without release", relax("send", "return_flag"), "data-race", "recv", RETURN_LOAD),
        c("no flag of a batch", leave_out(return_signal()), "deadlock", "recv", BATCH_WAIT),
        c("flag of the next owner", offset(return_signal(), Slot::Index, 1), "deadlock", "recv", BATCH_WAIT),
        c(
            "a copy out of range",
            offset(Site::put("send", "returns"), Slot::Index, 200),
            "out-of-bounds",
            "send",
            RETURN_COPY,
        ),
    ]
}
