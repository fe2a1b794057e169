//! temporary measurement
use crate::support::*;
use std::time::Instant;
use walgate_core::Lsn;
use walgate_harness::{Cluster, cpu_time};
use walgate_wire::*;

#[tokio::test(flavor = "multi_thread")]
#[ignore]
async fn measure() {
    let cluster = Cluster::builder(18).setting("max_wal_size", "8GB").setting("logical_decoding_work_mem","256MB").start().unwrap();
    let which = std::env::var("WL").unwrap_or("a".into());
    prepare(&cluster).await.unwrap();
    let client = cluster.client("postgres").await.unwrap();
    client.batch_execute("CREATE TABLE a (id int primary key, b int, c text, d int, e text); ALTER PUBLICATION p ADD TABLE a").await.unwrap();
    let (sql, rows) = match which.as_str() {
        "a" => ("DO $$ BEGIN FOR i IN 0..4999 LOOP INSERT INTO a SELECT i*100+n, n, 'abc', i, 'hello world' FROM generate_series(1,100) n; COMMIT; END LOOP; END $$", 500_000usize),
        "c" => ("INSERT INTO t SELECT n, repeat('x', 2000) FROM generate_series(1,100000) n", 100_000),
        _ => ("DO $$ BEGIN FOR i IN 0..99999 LOOP INSERT INTO a VALUES (i, i, 'abc', i, 'hello world'); COMMIT; END LOOP; END $$", 100_000),
    };
    client.batch_execute(sql).await.unwrap();
    client.batch_execute("CHECKPOINT").await.unwrap();

    for round in 0..3 {
        for unix in [false, true] {
            for (dedicated, pause) in [(false, 0u64), (true, 250), (true, 500), (true, 1000)] {
                if unix && pause == 500 && !dedicated { continue }
                let mut o = if unix { SourceOptions::from_url(&cluster.unix_url("postgres")).unwrap() } else { options(&cluster) };
                o.tls.mode = TlsMode::Disable;
                PAUSE_US.store(pause, std::sync::atomic::Ordering::Relaxed); PAUSED_US.store(0, std::sync::atomic::Ordering::Relaxed);
                let mut so = start_options();
                so.lazy = pause > 0;
                so.start = Lsn::ZERO;
                let stats = std::sync::Arc::new(PumpStats::new());
                let (sender, mut chunks) = channel(64 << 20);
                let (stop, mut stopw) = tokio::sync::watch::channel(false);
                let (_flush, mut flushw) = tokio::sync::watch::channel(Lsn::ZERO);
                let (pidtx, pidrx) = tokio::sync::oneshot::channel();
                let st = stats.clone();
                let t = Instant::now();
                let own0 = cpu_time(std::process::id()).unwrap();
                let work = async move {
                    let mut c = Connection::connect(&o).await.unwrap();
                    let pid: u32 = c.query("select pg_backend_pid()").await.unwrap()[0].get(0).unwrap().parse().unwrap();
                    pidtx.send(pid).unwrap();
                    let mut s = c.start_replication(&so).await.unwrap();
                    s.pump(&sender, &mut flushw, &mut stopw, &st).await.unwrap();
                };
                if dedicated {
                    std::thread::spawn(move || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work));
                } else { tokio::spawn(work); }
                let mut r = Received::default();
                while r.inserts < rows { for f in chunks.recv().await.unwrap().frames() { r.take(&f.unwrap()); } }
                let wall = t.elapsed();
                let cpu = cpu_time(pidrx.await.unwrap()).unwrap();
                let own = cpu_time(std::process::id()).unwrap() - own0;
                let s = stats.counts();
                eprintln!("{which} round {round} unix {unix} own thread {dedicated} pause {pause}: wall {:.2} walsender {:.2} own {:.2} reads {} pauses {} avg {} meanpause {}", wall.as_secs_f64(), cpu.as_secs_f64(), own.as_secs_f64(), s.reads, s.pauses, s.bytes / s.reads, PAUSED_US.load(std::sync::atomic::Ordering::Relaxed) / s.pauses.max(1));
                stop.send_replace(true);
                wait_active(&cluster, false).await.unwrap();
            }
        }
    }
}
