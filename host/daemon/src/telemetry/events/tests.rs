//! Every event, once: each is inside the closed sets, and counts what it says.
//!
//! Holds: calls with ordinary values. Read next: `../captured.rs`.

use super::super::captured::captured;
use super::*;

fn every_event() {
    let at = Lsn::new(0x16_B374_D848);
    connected("walgate", at);
    for kind in ["connection_lost", "hang_up", "peer_silent", "server_unavailable", "stream_ended"] {
        disconnected(kind, "nothing was heard");
    }
    slot_invalidated("walgate");
    received(100);
    transactions_read(2);
    messages_read(1);
    heartbeat_written();
    heartbeat_failed();
    checkpoint_advanced(at, false);
    checkpoint_advanced(at, true);
    store_retrying(1, 5);
    store_failed(HaltClass::StoreUnavailable);
    delivered("mirror", 10, at);
    delivery_retried("mirror", "peer-away", 1, "the plugin refused");
    instance_ended("mirror");
    bisected("mirror", 8);
    for kind in crate::status::LETTERS {
        dead_lettered("mirror", kind, "poison-row", 1);
    }
    dead_letters_waiting("mirror", 3);
    dead_letters_expired("mirror", 1);
    redriven("mirror", 1);
    rows_applied("mirror", 10, 1);
    schema_changed("mirror", "public.orders");
    swapped("mirror", 2, std::time::Duration::from_millis(3));
    candidate_rejected("mirror", "it cannot be opened");
    rolled_back("mirror", 2, "it trapped");
    parked("mirror", HaltClass::PluginFailed, "it trapped");
    parked_pins("mirror", 9);
    in_flight("mirror", 8);
    reading_paused("mirror");
    reading_resumed();
    took_over(3);
    standing_by();
    fenced(3);
    promoted(1, 2);
    halted(&Halt::of_plugin(HaltClass::PluginFailed, "mirror", "it trapped"));
    halted(&Halt::new(HaltClass::DataGapCursor, "it does not fit"));
}

#[test]
fn every_event_is_inside_the_closed_sets() {
    let captured = captured(true, every_event);
    assert_eq!(captured.violations(), 0, "{}{}", captured.log, captured.page);
    assert!(captured.json().iter().all(|line| line["message"].is_string()), "{}", captured.log);
    for line in [
        "walgate_wire_connections_total 1",
        "walgate_wire_disconnects_total{kind=\"peer_silent\"} 1",
        "walgate_slot_active 0",
        "walgate_transactions_total 2",
        "walgate_checkpoints_total{kind=\"data\"} 1",
        "walgate_checkpoints_total{kind=\"idle\"} 1",
        "walgate_rows_delivered_total{plugin=\"mirror\"} 10",
        "walgate_dead_letters_total{plugin=\"mirror\",kind=\"refused\"} 1",
        "walgate_dead_letters_lost_total{plugin=\"mirror\",kind=\"expired\"} 1",
        "walgate_dead_letters{plugin=\"mirror\"} 3",
        "walgate_rows_missed_total{plugin=\"mirror\"} 1",
        "walgate_epoch 3",
        "walgate_halted 1",
        "walgate_halted{class=\"data_gap(cursor)\"} 1",
    ] {
        assert!(captured.page.lines().any(|one| one == line), "no {line} in {}", captured.page);
    }
}

#[test]
fn what_comes_with_every_transaction_is_only_counted() {
    let captured = captured(true, || {
        received(1);
        transactions_read(1);
        messages_read(1);
        rows_applied("mirror", 1, 0);
        in_flight("mirror", 1);
    });
    assert_eq!(captured.log, "");
}
