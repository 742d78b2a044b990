//! The rows of `benches/compare` that need a whole server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::client;
use crate::fleet::{Fleet, percentile};
use crate::{Args, Load, Row, until};

/// Who stays connected in a storm.
const OTHERS: usize = 20;

/// Between two rounds, so that the last acknowledgements are in.
const PAUSE: Duration = Duration::from_millis(20);

/// From one change to the next while a storm goes on, unless the first isn't held by then. Each concerns every client, so a server
/// that was given the next as soon as it is through with the last would bear more the faster it is.
const BEAT: Duration = Duration::from_millis(250);

/// How many proxies a row has beside `--proxies`.
pub fn others(args: &Args) -> usize {
    if args.row == Some(Row::Storm) {
        OTHERS
    } else {
        0
    }
}

fn print(args: &Args, metric: &str, value: f64, unit: &str) {
    println!(
        "{}",
        match args.peer {
            None => json!({"metric": metric, "ours": value, "unit": unit}),
            Some(_) =>
                json!({"metric": metric, "peer_name": "go-control-plane", "peer": value, "unit": unit}),
        }
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn cost(load: &Load<'_>) -> Result<Duration, String> {
    load.server
        .cpu()
        .ok_or_else(|| "the server's process can't be looked at".to_owned())
}

/// Rounds of one change, each until all have it.
pub async fn push(load: &mut Load<'_>) -> Result<(), String> {
    let (args, count) = (load.args, load.args.proxies as u64);
    load.connect(0).await;
    load.until_ready(count).await?;
    if let (Some(file), None) = (&args.resources, &args.peer) {
        load.fleet.write_kept(file)?;
    }
    // The first rounds are for warming up.
    let warm = args.rounds.div_ceil(10);
    let mut before = cost(load)?;
    for round in 0..warm + args.rounds {
        if round == warm {
            load.fleet.take_seen();
            before = cost(load)?;
        }
        load.writer.change(&load.fleet, 0).await?;
        let fleet = &load.fleet;
        until(fleet, "told of the change", count, || fleet.holding()).await?;
        tokio::time::sleep(PAUSE).await;
    }
    let used = cost(load)?.saturating_sub(before);
    let seen = load.fleet.take_seen();
    let pushes = args.rounds * args.proxies;
    if seen.len() != pushes {
        return Err(format!("{} pushes of {pushes} arrived", seen.len()));
    }
    print(args, "p50", ms(percentile(&seen, 50)), "ms");
    print(args, "p99", ms(percentile(&seen, 99)), "ms");
    print(args, "cpu", used.as_secs_f64() * 1e6 / pushes as f64, "us");
    load.disconnect().await;
    Ok(())
}

/// All but a few lose their connections, and come back at once; meanwhile changes go on, for those who stayed.
pub async fn storm(load: &mut Load<'_>) -> Result<(), String> {
    let (args, main) = (load.args, load.args.proxies as u64);
    let others = Arc::new(Fleet::new(
        1_000_000,
        args.resources.is_some() && args.peer.is_none(),
    ));
    let stay: Vec<usize> = (args.proxies..args.proxies + OTHERS).collect();
    // On this thread: what they see is the server's doing, and not that of the many clients beside them.
    let staying: Vec<_> = stay
        .iter()
        .map(|proxy| {
            tokio::spawn(client::connection(
                others.clone(),
                load.xds,
                vec![*proxy],
                Instant::now(),
            ))
        })
        .collect();
    let all = OTHERS as u64;
    until(&others, "staying and configured", all, || others.ready()).await?;
    load.connect(0).await;
    load.until_ready(main).await?;
    if let (Some(file), None) = (&args.resources, &args.peer) {
        load.fleet.absorb(&others);
        load.fleet.write_kept(file)?;
    }
    load.fleet.take_first();
    let (mut storms, mut delays, mut used) = (Vec::new(), Vec::new(), Duration::ZERO);
    for round in 1..=args.rounds as u64 {
        load.disconnect().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        others.take_seen();
        let before = cost(load)?;
        let began = Instant::now();
        load.connect(0).await;
        let (ready, deadline) = (main * (round + 1), began + crate::PATIENCE);
        let mut beats = tokio::time::interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while load.fleet.ready() < ready {
            beats.tick().await;
            load.writer.change(&others, 0).await?;
            until(&others, "told of the change", all, || others.holding()).await?;
            if Instant::now() > deadline {
                return Err("not all come back in time".to_owned());
            }
        }
        used += cost(load)?.saturating_sub(before);
        let first = load.fleet.take_first();
        storms.push(percentile(&first, 100));
        delays.extend(others.take_seen());
    }
    delays.sort_unstable();
    storms.sort_unstable();
    print(args, "time", ms(percentile(&storms, 50)), "ms");
    print(args, "others", ms(percentile(&delays, 100)), "ms");
    print(
        args,
        "cpu",
        used.as_secs_f64() * 1e6 / (args.rounds as u64 * main) as f64,
        "us",
    );
    for connection in staying {
        connection.abort();
    }
    load.disconnect().await;
    Ok(())
}
