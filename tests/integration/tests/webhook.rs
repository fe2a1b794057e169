//! Batches over HTTP to a server that misbehaves on purpose: what arrives, under which id, and what each answer does.
//!
//! Holds: the plugin `webhook-rust` behind a grant for loopback. Never knows: how requests are sent; what the client itself
//! refuses and survives is tested beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use walgate_harness::{Reply, Seen, Walgate, WebServer, wait_until};

use super::scene::{SOON, Scene, expect_end, shop_manifest};

super::scenarios! {
    a_batch_arrives_signed_and_once,
    a_server_that_fails_gets_the_same_batch_again,
    a_pause_that_is_asked_for_is_kept,
    what_the_server_calls_wrong_becomes_a_dead_letter,
    what_the_server_calls_wrong_stops_nothing_else,
    a_redirect_is_not_followed_and_halts,
    a_server_that_misbehaves_gets_the_same_batch_again,
    an_answer_that_never_comes_ends_with_the_call,
    a_crash_loses_nothing_and_repeats_at_most_one_batch,
    what_is_not_granted_is_refused_with_the_line_that_grants_it,
    a_grant_that_cannot_be_used_is_told_before_anything_runs,
    a_credential_that_changes_is_used_without_a_restart,
    inspect_tells_of_requests,
}

/// The signing key, as the scheme spells it: 32 times the letter k.
const KEY: &str = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=";
const TOKEN: &str = "s3cret-token";

/// A scene with the plugin, and the server it posts to.
struct Post {
    scene: Scene,
    server: WebServer,
}

impl Post {
    async fn new(major: u32, on_failure: &str, rest: &str) -> Result<Self> {
        let mut scene = Scene::new(major).await?;
        let server = WebServer::start().await?;
        std::fs::write(scene.path("key"), format!("{KEY}\n"))?;
        std::fs::write(scene.path("token"), TOKEN)?;
        scene.configure("[secrets.key]\nfile = \"key\"\n[secrets.token]\nfile = \"token\"")?;
        let post = Self { scene, server };
        post.install(on_failure, &post.url("/in/"), rest)?;
        post.scene.create_slot()?;
        Ok(post)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    /// Puts the plugin in its place, to post to `url`. What is granted is `/in/` of the server.
    fn install(&self, on_failure: &str, url: &str, rest: &str) -> Result<()> {
        let address = self.server.address();
        let policy = format!("on_failure = \"{on_failure}\"\nbackoff_ms = 10\nmax_backoff_ms = 20");
        let shop = shop_manifest("halt", 20).replace("on_failure = \"halt\"", &policy);
        let manifest = format!(
            "{shop}[[grant.http]]\nurl = \"http://{address}/in/\"\nmethods = [\"POST\"]\naddresses = [\"127.0.0.0/8\"]\n\
             sign = {{ scheme = \"standard-webhooks\", secret = \"key\" }}\n\
             headers = {{ authorization = {{ secret = \"token\", prefix = \"Bearer \" }} }}\n\
             [settings]\nurl = \"{url}\"\n{rest}\n"
        );
        self.scene.plugin("webhook", "webhook-rust", &manifest)
    }

    async fn order(&self, id: usize) -> Result<()> {
        self.scene.execute(&format!("INSERT INTO orders VALUES ({id}, 1, 'note-{id}')")).await
    }

    async fn wait_seen(&self, count: usize) -> Result<Vec<Seen>> {
        wait_until(SOON, &format!("{count} requests"), async || Ok(self.server.seen().len() >= count)).await?;
        Ok(self.server.seen())
    }

    async fn wait_taken(&self, walgate: &Walgate, rows: u64) -> Result<()> {
        wait_until(SOON, &format!("{rows} rows taken"), async || {
            Ok(self.scene.status(walgate).await?["plugins"]["webhook"]["rows"] == rows)
        })
        .await
    }
}

fn document(seen: &Seen) -> Result<Value> {
    serde_json::from_slice(&seen.body).context("the body is no JSON")
}

/// The ids of the orders that a request inserts.
fn orders(seen: &Seen) -> Result<Vec<i64>> {
    let document = document(seen)?;
    let changes = document["changes"].as_array().context("no changes")?;
    Ok(changes.iter().filter_map(|change| change["after"]["id"].as_i64()).collect())
}

/// By the receiver's own arithmetic.
fn check_signature(seen: &Seen) -> Result<()> {
    let header = |name: &str| seen.header(name).with_context(|| format!("no {name}"));
    let (id, at) = (header("webhook-id")?, header("webhook-timestamp")?);
    let mut mac = Hmac::<Sha256>::new_from_slice(&[b'k'; 32])?;
    mac.update(format!("{id}.{at}.").as_bytes());
    mac.update(&seen.body);
    let expected = format!("v1,{}", base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes()));
    ensure!(header("webhook-signature")? == expected, "the signature does not fit");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    ensure!(now.abs_diff(at.parse()?) < 300, "signed at {at}, which is not now");
    Ok(())
}

/// What the host says must hold nothing of a request but where it went.
fn check_said(walgate: &Walgate) -> Result<()> {
    let said = walgate.stdout() + &walgate.stderr();
    for secret in [TOKEN, "note-", "whsec_", "/in/", "kkkk", "v1,"] {
        ensure!(!said.contains(secret), "{secret:?} was said: {said}");
    }
    Ok(())
}

async fn a_batch_arrives_signed_and_once(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    let mut walgate = post.scene.run().await?;
    post.order(1).await?;
    post.wait_taken(&walgate, 1).await?;
    post.scene.execute("UPDATE orders SET note = 'later' WHERE id = 1; DELETE FROM orders WHERE id = 1").await?;
    post.wait_taken(&walgate, 3).await?;
    post.scene.wait_confirmed().await?;
    let seen = post.server.seen();
    let first = &seen[0];
    ensure!((first.method.as_str(), first.target.as_str()) == ("POST", "/in/"), "{first:?}");
    ensure!(first.header("authorization") == Some(&format!("Bearer {TOKEN}")), "no token");
    ensure!(first.header("content-type") == Some("application/json"), "{:?}", first.headers);
    let body = document(first)?;
    ensure!(body["id"] == first.header("webhook-id").unwrap_or_default() && body["attempt"] == 1, "{body}");
    let change = &body["changes"][0];
    ensure!(change["op"] == "insert" && change["table"] == "orders", "{body}");
    ensure!(change["after"] == json!({"id": 1, "customer": 1, "note": "note-1"}), "{body}");
    let committed = body["transactions"][0]["committed_at"].as_str().unwrap_or_default();
    let year = post.scene.ask("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY')").await?;
    ensure!(committed.starts_with(&year), "{body}");
    let mut ids = BTreeMap::new();
    for one in &seen {
        check_signature(one)?;
        ensure!(ids.insert(one.header("webhook-id").map(str::to_owned), ()).is_none(), "an id came twice");
    }
    // All on one connection.
    ensure!(post.server.accepted() == 1, "{} connections", post.server.accepted());
    ensure!(post.scene.status(&walgate).await?["plugins"]["webhook"]["mode"] == "host-checkpointed", "the mode");
    walgate.wait_line("http request", SOON).await?;
    let said = walgate.stderr();
    let line = said.lines().find(|line| line.contains("http request")).context("no audit line")?;
    for part in
        ["plugin=webhook", "method=post", &format!("host={}", post.server.address()), "status=2xx", "outcome=whole"]
    {
        ensure!(line.contains(part), "no {part} in {line}");
    }
    check_said(&walgate)
}

async fn a_server_that_fails_gets_the_same_batch_again(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    post.server.reply([500, 502, 503, 408, 425, 429].map(Reply::Status));
    let walgate = post.scene.run().await?;
    post.order(1).await?;
    post.wait_taken(&walgate, 1).await?;
    let seen = post.server.seen();
    ensure!(seen.len() == 7, "{} requests", seen.len());
    for (attempt, one) in (1..).zip(&seen) {
        ensure!(one.header("webhook-id") == seen[0].header("webhook-id"), "another id");
        let body = document(one)?;
        ensure!(body["attempt"] == attempt && body["changes"] == document(&seen[0])?["changes"], "{body}");
        check_signature(one)?;
    }
    check_said(&walgate)
}

async fn a_pause_that_is_asked_for_is_kept(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    let dates = vec!["Date: Sun, 06 Nov 1994 08:49:37 GMT".into(), "Retry-After: Sun, 06 Nov 1994 08:49:39 GMT".into()];
    post.server.reply([
        Reply::With(429, vec!["Retry-After: 1".into()], String::new()),
        Reply::With(503, dates, String::new()),
    ]);
    let walgate = post.scene.run().await?;
    post.order(1).await?;
    post.wait_taken(&walgate, 1).await?;
    let at: Vec<_> = post.server.seen().iter().map(|one| one.at).collect();
    let [first, second, third] = at.as_slice() else { anyhow::bail!("{} requests", at.len()) };
    // Never sooner: the backoff of this plugin is 20 ms at most.
    let (one, two) = (second.duration_since(*first), third.duration_since(*second));
    ensure!(one >= Duration::from_secs(1) && two >= Duration::from_secs(2), "{one:?}, {two:?}");
    Ok(())
}

async fn what_the_server_calls_wrong_becomes_a_dead_letter(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    post.server.reply([Reply::Status(400)]);
    let walgate = post.scene.run().await?;
    post.order(1).await?;
    post.wait_seen(1).await?;
    post.order(2).await?;
    post.scene.wait_confirmed().await?;
    let letters = post.scene.cli(&["--json", "dead-letter", "list"])?;
    let letters: Value = serde_json::from_str(&letters.stdout()).with_context(|| letters.all())?;
    ensure!(letters["letters"].as_array().is_some_and(|all| all.len() == 1), "{letters}");
    ensure!(letters.to_string().contains("http-400") && !letters.to_string().contains("note-"), "{letters}");
    let posted = post.server.seen().iter().map(orders).collect::<Result<Vec<_>>>()?.concat();
    ensure!(posted.starts_with(&[1, 2]), "{posted:?}");
    check_said(&walgate)
}

/// A backlog of transactions comes in few batches; the one that is wrong is found, the others arrive.
async fn what_the_server_calls_wrong_stops_nothing_else(major: u32) -> Result<()> {
    let post = Post::new(major, "dead-letter", "").await?;
    for id in 1..=8 {
        post.order(id).await?;
    }
    post.server.refuse("note-3", 422);
    let _walgate = post.scene.run().await?;
    post.scene.wait_confirmed().await?;
    let mut taken = Vec::new();
    for one in post.server.seen() {
        let orders = orders(&one)?;
        if !orders.contains(&3) {
            taken.extend(orders);
        }
    }
    ensure!(taken.starts_with(&[1, 2, 4, 5, 6, 7, 8]), "{taken:?}");
    let letters = post.scene.cli(&["--json", "dead-letter", "list"])?;
    let letters: Value = serde_json::from_str(&letters.stdout()).with_context(|| letters.all())?;
    ensure!(letters["letters"].as_array().is_some_and(|all| all.len() == 1), "{letters}");
    ensure!(letters.to_string().contains("http-422"), "{letters}");
    Ok(())
}

async fn a_redirect_is_not_followed_and_halts(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    let elsewhere = WebServer::start().await?;
    let to = |address| vec![format!("Location: http://{address}/in/elsewhere")];
    post.server.reply([Reply::With(307, to(post.server.address()), String::new())]);
    let mut walgate = post.scene.run().await?;
    post.order(1).await?;
    expect_end(&mut walgate, 3, &["http-redirect", "webhook"]).await?;
    post.server.reply([Reply::With(301, to(elsewhere.address()), String::new())]);
    expect_end(&mut post.scene.start()?, 3, &["http-redirect", "webhook"]).await?;
    let seen = post.server.seen();
    ensure!(seen.len() == 2 && seen.iter().all(|one| one.target == "/in/"), "{} requests", seen.len());
    ensure!(elsewhere.accepted() == 0, "it was followed");
    // Once the receiver is mended, nothing is lost.
    let walgate = post.scene.run().await?;
    post.wait_taken(&walgate, 1).await
}

async fn a_server_that_misbehaves_gets_the_same_batch_again(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "[limits]\nhttp_timeout_ms = 500\nhttp_response_bytes = 1000").await?;
    let misbehaviours = [
        Reply::Close,
        Reply::HalfHead,
        Reply::HugeHead,
        Reply::ManyHeaders,
        Reply::HalfBody,
        Reply::Endless,
        Reply::Dripping,
        Reply::Garbage,
        Reply::Never,
    ];
    let count = misbehaviours.len();
    post.server.reply(misbehaviours);
    let walgate = post.scene.run().await?;
    post.order(1).await?;
    post.wait_taken(&walgate, 1).await?;
    let seen = post.server.seen();
    ensure!(seen.len() == count + 1, "{} requests instead of {}", seen.len(), count + 1);
    ensure!(seen.iter().all(|one| one.header("webhook-id") == seen[0].header("webhook-id")), "another id");
    let said = walgate.stderr();
    for outcome in ["incomplete", "head-too-large", "response-too-large", "timeout", "protocol", "whole"] {
        ensure!(said.contains(&format!("outcome={outcome}")), "no {outcome} in: {said}");
    }
    check_said(&walgate)
}

/// The time of a call is less than that of a request: the call ends, and the request with it.
async fn an_answer_that_never_comes_ends_with_the_call(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "[limits]\ncall_deadline_ms = 500\nhttp_timeout_ms = 3600000").await?;
    post.server.reply([Reply::Never]);
    let mut walgate = post.scene.run().await?;
    post.order(1).await?;
    walgate.wait_line("outcome=cancelled", SOON).await?;
    post.wait_taken(&walgate, 1).await?;
    // Its connection is closed; the one that answered is kept.
    wait_until(SOON, "one connection", async || Ok(post.server.open() == 1)).await?;
    let seen = post.server.seen();
    ensure!(seen.len() == 2 && seen[0].header("webhook-id") == seen[1].header("webhook-id"), "{} requests", seen.len());
    Ok(())
}

async fn a_crash_loses_nothing_and_repeats_at_most_one_batch(major: u32) -> Result<()> {
    const ROUNDS: usize = 5;
    let post = Post::new(major, "halt", "").await?;
    let mut last = 0;
    for round in 1..=ROUNDS {
        let mut walgate = post.scene.run().await?;
        let before = post.server.seen().len();
        for _ in 0..10 {
            last += 1;
            post.order(last).await?;
        }
        post.wait_seen(before + round).await?;
        walgate.sigkill()?;
    }
    let mut walgate = post.scene.run().await?;
    post.scene.wait_confirmed().await?;
    walgate.sigterm()?;
    walgate.wait_exit(SOON).await?;
    let seen = post.server.seen();
    let mut times: BTreeMap<i64, usize> = BTreeMap::new();
    let mut batches: BTreeMap<&str, usize> = BTreeMap::new();
    for one in &seen {
        check_signature(one)?;
        *batches.entry(one.header("webhook-id").context("no id")?).or_default() += 1;
        for order in orders(one)? {
            *times.entry(order).or_default() += 1;
        }
    }
    let wanted = i64::try_from(last)?;
    ensure!((1..=wanted).all(|id| times.contains_key(&id)), "lost: {times:?}");
    // A crash repeats what was under way when it came, which is one batch, and a batch keeps its id only if it keeps its
    // content: so what is counted is orders, and how many requests held one that had come before.
    let repeating = seen.iter().enumerate().map(|(at, one)| {
        let earlier = seen.iter().take(at).map(orders).collect::<Result<Vec<_>>>()?.concat();
        Ok(orders(one)?.iter().any(|id| earlier.contains(id)))
    });
    let repeats = repeating.collect::<Result<Vec<bool>>>()?.into_iter().filter(|repeats| *repeats).count();
    ensure!(repeats <= ROUNDS, "{repeats} repeats in {ROUNDS} crashes: {batches:?}");
    Ok(())
}

async fn what_is_not_granted_is_refused_with_the_line_that_grants_it(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    let address = post.server.address();
    post.order(1).await?;
    // Another path of the host, one that climbs, and another host.
    let other = format!("127.0.0.2:{}", address.port());
    for (url, words) in [
        (post.url("/out/"), format!("url = \"http://{address}/PATH/\"")),
        (post.url("/in/../out/"), "must have a path without".to_owned()),
        (post.url("@elsewhere.example/in/"), "must not hold a user".to_owned()),
        (format!("http://{other}/in/?s3cret-token"), format!("url = \"http://{other}/PATH/\"")),
    ] {
        post.install("halt", &url, "")?;
        let mut walgate = post.scene.start()?;
        expect_end(&mut walgate, 3, &["not-granted", "denied", &words]).await?;
        check_said(&walgate).with_context(|| url.clone())?;
    }
    ensure!(post.server.accepted() == 0, "something was sent");
    post.install("halt", &post.url("/in/"), "")?;
    let walgate = post.scene.run().await?;
    post.wait_taken(&walgate, 1).await
}

async fn a_grant_that_cannot_be_used_is_told_before_anything_runs(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    std::fs::write(post.scene.path("token"), "two\nlines-of-s3cret")?;
    let answer = post.scene.cli(&["plugin", "list"])?;
    answer.expect(0, "secrets.token cannot be sent in a header")?;
    ensure!(!answer.all().contains("s3cret"), "{}", answer.all());
    std::fs::remove_file(post.scene.path("key"))?;
    post.scene.cli(&["plugin", "list"])?.expect(0, "grant.http: secrets.")?;
    post.scene.plugin("webhook", "webhook-rust", &shop_manifest("halt", 3))?;
    post.scene.cli(&["plugin", "list"])?.expect(0, "[[grant.http]]")
}

async fn a_credential_that_changes_is_used_without_a_restart(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    let walgate = post.scene.run().await?;
    post.order(1).await?;
    post.wait_seen(1).await?;
    std::fs::write(post.scene.path("token"), "s3cret-token-2")?;
    let mut last = 1;
    wait_until(SOON, "the new token", async || {
        last += 1;
        post.order(last).await?;
        Ok(post.server.seen().iter().any(|one| one.header("authorization") == Some("Bearer s3cret-token-2")))
    })
    .await?;
    check_said(&walgate)
}

async fn inspect_tells_of_requests(major: u32) -> Result<()> {
    let post = Post::new(major, "halt", "").await?;
    let directory = post.scene.path("plugins").display().to_string();
    let granted = format!("http POST {}", post.url("/in/"));
    post.scene.cli(&["plugin", "check", &directory])?.expect(0, &granted)?;
    let inspect =
        |name: &str| post.scene.cli(&["plugin", "inspect", &walgate_harness::guest(name)?.display().to_string()]);
    let told = inspect("webhook-rust")?;
    told.expect(0, "wasi:http/outgoing-handler@0.2.0")?;
    told.expect(0, "[[grant.http]]\nurl = ")?;
    told.expect(0, "host-checkpointed unless `open` answers a position")?;
    // The kit can send; a plugin that does not has no such import.
    let told = inspect("counter-rust")?;
    ensure!(!told.all().contains("wasi:http"), "{}", told.all());
    Ok(())
}
