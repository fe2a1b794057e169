//! The page that `walgate status` prints, from the JSON that a running process answers.
//!
//! Holds: the words and their order. What another version leaves out is left out here. Refuses to know how a number came
//! about. Read next: [`super::Board`].

use super::Blocker;
use crate::printer::moment;

/// The page for a terminal, from the JSON that a running process answers.
pub(crate) fn page(status: &serde_json::Value) -> String {
    let text = |path: &str| match status.pointer(path) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(serde_json::Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    };
    let mut out = format!("walgate {}: {}\n", text("/version"), text("/phase"));
    if text("/leader") != "-" {
        out.push_str(&format!(
            "leader    this process is the {}, epoch {}; the lease is held by {}\n",
            text("/leader/role"),
            text("/leader/epoch"),
            text("/leader/holder")
        ));
    }
    if status.get("halt").is_some_and(|halt| !halt.is_null()) {
        out.push_str(&format!("halted    {}: {}\n", text("/halt/name"), text("/halt/detail")));
    }
    // A process that stands by has not asked it.
    if !matches!(text("/source/server_major").as_str(), "0" | "-") {
        out.push_str(&format!(
            "source    database {}, slot {}, Postgres {}, timeline {}\n",
            text("/source/database"),
            text("/source/slot"),
            text("/source/server_major"),
            text("/source/timeline")
        ));
    }
    if text("/source/last_error") != "-" {
        out.push_str(&format!("          {} attempts: {}\n", text("/source/attempts"), text("/source/last_error")));
    }
    source_page(status, &text, &mut out);
    if text("/state_error") != "-" {
        out.push_str(&format!("state     {}\n", text("/state_error")));
    }
    if text("/leader/role") == "standby" {
        out.push_str("          it reads nothing until the lease is free; positions and plugins are shown by the one that holds it\n");
    }
    // Nothing was read yet, here.
    if !matches!(text("/positions/read").as_str(), "" | "-") {
        out.push_str(&format!(
            "position  read {}, acknowledged {}, {} bytes apart\n",
            text("/positions/read"),
            text("/positions/acknowledged"),
            text("/positions/lag_bytes")
        ));
    }
    if text("/positions/reading_waits_for") != "-" {
        out.push_str(&format!(
            "          reading waits for plugin {}, which has as much in flight as it may\n",
            text("/positions/reading_waits_for")
        ));
    }
    if text("/positions/held_for_standbys") != "-" {
        out.push_str(&format!(
            "          durable up to {}; not acknowledged, because a standby with a physical slot does not have it yet\n",
            text("/positions/held_for_standbys")
        ));
    }
    for (name, _) in status.get("plugins").and_then(serde_json::Value::as_object).into_iter().flatten() {
        let of = |field: &str| text(&format!("/plugins/{}/{field}", name.replace('~', "~0").replace('/', "~1")));
        let since = of("since").parse().ok().filter(|since| *since > 0).map(moment);
        let since = since.map(|since| format!(" since {since}")).unwrap_or_default();
        // What has not run has no part in it yet, required or not.
        let optional = if of("required") == "false" && !of("version").is_empty() { " (optional)" } else { "" };
        out.push_str(&format!(
            "plugin    {name}{optional}: {}{since}, {} rows in {} batches",
            of("state"),
            of("rows"),
            of("batches")
        ));
        // What never ran has no place.
        match of("cursor") {
            cursor if cursor.is_empty() => out.push('\n'),
            cursor => out.push_str(&format!(", durable to {cursor}\n")),
        }
        let mode = of("mode");
        if !mode.is_empty() && mode != "-" {
            out.push_str(&format!("          mode {mode}\n"));
        }
        out.push_str(&format!(
            "          {} bytes behind what was read, {} bytes of log pinned, {} bytes in flight\n",
            of("lag_bytes"),
            of("pinned_wal_bytes"),
            of("inflight_bytes")
        ));
        if !matches!(of("dead_letters").as_str(), "0" | "-") {
            out.push_str(&format!("          {} dead letters wait\n", of("dead_letters")));
        }
        if of("last_error_code") != "-" {
            out.push_str(&format!("          last failed with code {}\n", of("last_error_code")));
        }
        if of("cause") != "-" {
            out.push_str(&format!("          {}\n", of("cause")));
        }
        if of("next_attempt_ms") != "-" {
            let (made, pause) = (of("attempt"), of("next_attempt_ms"));
            out.push_str(&format!("          {made} attempts were made, the next comes {pause} ms after the last\n"));
        }
    }
    out
}

/// What the monitor of the source has found.
fn source_page(status: &serde_json::Value, text: &dyn Fn(&str) -> String, out: &mut String) {
    let lags = [text("/source/confirmed_lag_bytes"), text("/source/restart_lag_bytes")];
    if lags.iter().any(|lag| lag != "-") {
        let [confirmed, restart] = lags;
        out.push_str(&format!(
            "lag       confirmed {confirmed} bytes, restart {restart} bytes behind the end of the source's log, which is {}\n",
            text("/source/wal_status")
        ));
    }
    if text("/source/safe_wal_bytes") != "-" {
        out.push_str(&format!(
            "          {} bytes may be written before the slot is in danger\n",
            text("/source/safe_wal_bytes")
        ));
    }
    // Another version may tell blockers in another form; what is not understood is left out.
    let blockers = status.pointer("/source/blockers").cloned().unwrap_or_default();
    for blocker in serde_json::from_value::<Vec<Blocker>>(blockers).unwrap_or_default() {
        out.push_str(&format!("blocker   {blocker}\n"));
    }
    if text("/source/monitor_error") != "-" {
        out.push_str(&format!("monitor   {}\n", text("/source/monitor_error")));
    }
    if text("/source/heartbeat") != "-" {
        out.push_str(&format!(
            "heartbeat {} written, {} failed\n",
            text("/source/heartbeat/written"),
            text("/source/heartbeat/failed")
        ));
        if text("/source/heartbeat/last_error") != "-" {
            out.push_str(&format!("          {}\n", text("/source/heartbeat/last_error")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    fn page_of(change: impl FnOnce(&mut Status)) -> String {
        let board = Board::new();
        board.write(change);
        page(&serde_json::to_value(board.read()).unwrap())
    }

    #[track_caller]
    fn check(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.contains(line), "no {line:?} in:\n{page}");
        }
    }

    #[test]
    fn the_page_tells_both_lags_and_who_blocks() {
        let transaction = Blocker {
            kind: "transaction".to_owned(),
            pid: Some(42),
            application_name: Some("psql \"x\"".to_owned()),
            state: Some("idle in transaction".to_owned()),
            age_seconds: Some(7),
            has_xid: true,
        };
        let slot = Blocker { kind: "replication slot standby_1".to_owned(), ..Blocker::default() };
        let page = page_of(|status| {
            let source = &mut status.source;
            (source.confirmed_lag_bytes, source.restart_lag_bytes) = (Some(10), Some(2000));
            (source.wal_status, source.safe_wal_bytes) = (Some("extended".to_owned()), Some(-5));
            source.blockers = vec![transaction, slot];
            source.monitor_error = Some("away".to_owned());
            source.heartbeat = Some(HeartbeatStatus { written: 3, failed: 1, last_error: Some("refused".to_owned()) });
        });
        check(
            &page,
            &[
                "lag       confirmed 10 bytes, restart 2000 bytes behind the end of the source's log, which is extended\n",
                "          -5 bytes may be written",
                "blocker   transaction of process 42, application \"psql \\\"x\\\"\", idle in transaction, open for 7 s\n",
                "blocker   replication slot standby_1, snapshot only\n",
                "monitor   away\n",
                "heartbeat 3 written, 1 failed\n          refused\n",
            ],
        );
    }

    #[test]
    fn the_page_tells_what_reading_waits_for_and_since_when() {
        let board = Board::new();
        board.read_to(Lsn::new(16));
        board.reading_waits(Some("slow"));
        board.plugin_state("slow", "retrying", None);
        board.plugin("slow", |plugin| {
            plugin.since = 1_800_000_000;
            "0/10".clone_into(&mut plugin.cursor);
            "1.0.0".clone_into(&mut plugin.version);
        });
        board.plugin_state("new", "rejected", None);
        let page = page(&serde_json::to_value(board.read()).unwrap());
        check(
            &page,
            &[
                "position  read 0/10, acknowledged ",
                "          reading waits for plugin slow",
                "plugin    new: rejected since ",
                "plugin    slow (optional): retrying since 2027-01-15T08:00:00Z, 0 rows in 0 batches, durable to 0/10\n",
            ],
        );
    }

    #[test]
    fn the_page_of_a_start_says_nothing_that_is_not_known() {
        let page = page_of(|_| {});
        for word in ["lag  ", "blocker", "monitor", "heartbeat", "leader", "position"] {
            assert!(!page.contains(word), "{word:?} in:\n{page}");
        }
    }

    #[test]
    fn the_page_tells_leader_and_plugins() {
        let page = page_of(|status| {
            status.phase = Phase::Standby;
            status.leader = Some(LeaderStatus { role: Role::Standby, epoch: 4, holder: "host-b".to_owned() });
            let plugin = PluginStatus {
                mode: "stored".to_owned(),
                lag_bytes: 11,
                pinned_wal_bytes: 12,
                inflight_bytes: 13,
                dead_letters: 14,
                last_error_code: Some("bad-row".to_owned()),
                ..PluginStatus::default()
            };
            status.plugins.insert("p".to_owned(), plugin);
        });
        check(
            &page,
            &[
                ": standby\n",
                "leader    this process is the standby, epoch 4; the lease is held by host-b\n          it reads nothing until",
                "          mode stored\n",
                "          11 bytes behind what was read, 12 bytes of log pinned, 13 bytes in flight\n",
                "          14 dead letters wait\n",
                "          last failed with code bad-row\n",
            ],
        );
    }
}
