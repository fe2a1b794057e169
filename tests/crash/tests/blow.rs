//! What is done to a running pipeline.
//!
//! Holds: one variant a blow, and which of them a mode and its servers can be dealt. Never knows: what is proved later.
//! After each blow every server runs again; whether walgate does is left to whoever comes next.

use std::fmt;

use anyhow::Result;
use rand::Rng as _;
use rand::rngs::StdRng;

use crate::mode::{Mode, latest_pass};
use crate::scene::{Part, Scene};

/// One blow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The process kills itself at that pass of that point.
    Point(&'static str, u64),
    /// The process is killed at a random moment.
    Walgate,
    /// The server ends the connection of the stream.
    Stream,
    /// The server ends the connection of the state.
    StateSession,
    /// The source crashes and comes back.
    Source,
    /// The server of the state crashes and comes back.
    State,
    /// Two at once.
    WalgateAndSource,
    /// Two at once.
    WalgateAndState,
    /// Two at once.
    SourceAndState,
    /// The server ends the connection of the rows.
    FarSession,
    /// The database of the rows crashes and comes back.
    Far,
    /// Two at once.
    WalgateAndFar,
    /// Two at once.
    FarAndState,
    /// The disk under the output is full for a moment.
    Disk,
    /// The disk under the output is full until walgate halts.
    DiskForLong,
}

impl Blow {
    /// Everything but the points, where it applies.
    pub(crate) fn surroundings(mode: Mode, apart: bool) -> Vec<Self> {
        let everywhere = [Self::Walgate, Self::Stream, Self::StateSession, Self::Source, Self::WalgateAndSource];
        let with_two_servers = [Self::State, Self::WalgateAndState, Self::SourceAndState];
        let with_far_rows = [Self::FarSession, Self::Far, Self::WalgateAndFar, Self::FarAndState];
        let with_a_file = [Self::Disk, Self::DiskForLong];
        let mut all = everywhere.to_vec();
        all.extend(with_two_servers.iter().filter(|_| apart));
        all.extend(with_far_rows.iter().filter(|_| mode == Mode::RowsFar));
        all.extend(with_a_file.iter().filter(|_| mode == Mode::Transactional));
        all
    }

    /// One at random: points half of the time.
    pub(crate) fn any(mode: Mode, apart: bool, random: &mut StdRng) -> Self {
        if random.random_bool(0.5) {
            return Self::point(pick(&mode.points(), random), random);
        }
        let quick = |blow: &Self| *blow != Self::DiskForLong;
        pick(&Self::surroundings(mode, apart).into_iter().filter(quick).collect::<Vec<_>>(), random)
    }

    /// That point, at a random pass.
    pub(crate) fn point(name: &'static str, random: &mut StdRng) -> Self {
        Self::Point(name, random.random_range(1..=latest_pass(name)))
    }

    /// Deals it. Answers how many processes it killed.
    pub(crate) async fn strike(self, scene: &mut Scene, random: &mut StdRng) -> Result<usize> {
        scene.load.resume();
        if let Self::Point(name, pass) = self {
            let killed = scene.kill()?;
            scene.start(Some((name, pass))).await?;
            scene.fallen(name).await?;
            return Ok(killed + 1);
        }
        scene.moment(random).await?;
        match self {
            Self::Point(..) => Ok(0),
            Self::Walgate => scene.kill(),
            Self::Stream => scene.disconnect().await.map(|()| 0),
            Self::StateSession => scene.disconnect_state().await.map(|()| 0),
            Self::Source => scene.crash(&[Part::Source]),
            Self::State => scene.crash(&[Part::State]),
            Self::WalgateAndSource => scene.crash(&[Part::Walgate, Part::Source]),
            Self::WalgateAndState => scene.crash(&[Part::Walgate, Part::State]),
            Self::SourceAndState => scene.crash(&[Part::Source, Part::State]),
            Self::FarSession => scene.disconnect_far().await.map(|()| 0),
            Self::Far => scene.crash(&[Part::Far]),
            Self::WalgateAndFar => scene.crash(&[Part::Walgate, Part::Far]),
            Self::FarAndState => scene.crash(&[Part::Far, Part::State]),
            Self::Disk => scene.fill_disk(false).await.map(|_| 0),
            Self::DiskForLong => scene.fill_disk(true).await.map(|_| 0),
        }
    }
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Point(name, pass) => write!(f, "{name}={pass}"),
            Self::Walgate => f.write_str("kill walgate"),
            Self::Stream => f.write_str("end the stream"),
            Self::StateSession => f.write_str("end the state session"),
            Self::Source => f.write_str("crash the source"),
            Self::State => f.write_str("crash the state"),
            Self::WalgateAndSource => f.write_str("kill walgate and crash the source"),
            Self::WalgateAndState => f.write_str("kill walgate and crash the state"),
            Self::SourceAndState => f.write_str("crash source and state"),
            Self::FarSession => f.write_str("end the session of the rows"),
            Self::Far => f.write_str("crash the database of the rows"),
            Self::WalgateAndFar => f.write_str("kill walgate and crash the database of the rows"),
            Self::FarAndState => f.write_str("crash the databases of rows and state"),
            Self::Disk => f.write_str("fill the disk"),
            Self::DiskForLong => f.write_str("fill the disk until it halts"),
        }
    }
}

fn pick<T: Copy>(all: &[T], random: &mut StdRng) -> T {
    all[random.random_range(0..all.len())]
}
