//! An outage on one page: a server falls ill and gets well again, and three clients that ask it
//! all the while show what they make of it.
//!
//! The server is a real one (hyper, HTTP/1) in a process of its own. All three clients are
//! hyper-util's, and send the same requests at the same times:
//!
//! 1. `bare`: hyper with a timeout,
//! 2. `retries`: the same, with three immediate retries,
//! 3. `buttress`: hyper in the standard stack.
//!
//! ```text
//! cargo run --release -p buttress-examples --bin outage
//! ```

mod canvas;
mod child;
mod limits;
mod live;
mod load;
mod options;
mod picture;
mod plain;
mod reading;
mod script;
mod server;
mod stack;
mod stats;
mod table;
mod timeline;
mod workers;

use std::{io, process::ExitCode, time::Duration};

use buttress::edge;
use buttress_examples::cli::{self, INTERRUPTED, interrupted, say};
use tokio::{sync::mpsc, time};
use tower::{BoxError, service_fn};

use crate::{
    child::ServerProcess,
    live::Live,
    load::{Client, Load},
    options::Options,
    picture::Picture,
    script::{Mood, Script},
    stats::{Answer, Summary},
    timeline::Timeline,
};

/// What a run leaves behind.
struct Run {
    /// By client, in the order of [`Client::ALL`], as is `reached`.
    answers: Vec<Vec<Answer>>,
    /// What reached the server, by client and beat.
    reached: Vec<Vec<u64>>,
    breaker: Timeline,
}

/// How often the live line is drawn anew and the breaker looked at.
const TICK: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(code) => return code,
    };
    let script = Script::new(Duration::from_secs_f64(options.seconds));
    let end = if options.serve {
        server::serve(script, options.rate, options.seed)
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into)
    } else {
        // On one thread, whose dice can be seeded: the stack draws from them.
        edge::seed(options.seed);
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Into::into)
            .and_then(|runtime| runtime.block_on(outage(&options, script)))
    };
    end.unwrap_or_else(|error| {
        cli::complain(format_args!("error: {error}"));
        ExitCode::FAILURE
    })
}

/// Runs the script and shows what came of it. Whatever happens, the server's process is gone
/// when this returns.
async fn outage(options: &Options, script: Script) -> Result<ExitCode, BoxError> {
    let mut server = ServerProcess::spawn(options)?;
    let ran = tokio::select! {
        ran = run(options, script, &mut server) => ran.map(Some),
        () = interrupted() => Ok(None),
    };
    server.stop().await;
    let Some(run) = ran? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };

    let summaries = Client::ALL.map(|client| {
        Summary::new(&run.answers[client as usize], &run.reached[client as usize], &script)
    });
    say(table::table(&summaries))?;
    for line in reading::reading(&summaries, &script) {
        say(reading::item(&line))?;
    }
    Picture {
        script,
        rate: options.rate,
        summaries: &summaries,
        reached: &run.reached,
        breaker: &run.breaker,
    }
    .save(&options.out)?;
    say(format_args!("\nThe timeline: {0}/outage.svg, {0}/outage.png", options.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Lets the three clients ask the server while it goes through its script.
async fn run(
    options: &Options,
    script: Script,
    server: &mut ServerProcess,
) -> Result<Run, BoxError> {
    let url = format!("http://127.0.0.1:{}/", server.port().await?).parse()?;
    let bare = {
        let hyper = plain::hyper();
        service_fn(move |request| plain::bare(hyper.clone(), request))
    };
    let retries = {
        let hyper = plain::hyper();
        service_fn(move |request| plain::retries(hyper.clone(), request))
    };
    let (standard, look) = stack::standard()?;

    say(introduction(options))?;
    server.start().await?;
    let origin = edge::now();
    let (tell, mut told) = mpsc::unbounded_channel();
    let load = Load {
        url,
        origin,
        starts: load::starts(options.rate, script.total(), options.seed),
        answers: tell,
    };
    let drive = async {
        tokio::join!(
            load.clone().drive(Client::Bare, bare),
            load.clone().drive(Client::Retries, retries),
            load.drive(Client::Standard, standard),
        );
        Ok::<_, io::Error>(())
    };
    // Ends when the last request is answered: then nobody is left who could tell.
    let watch = async {
        let mut answers = vec![Vec::new(); Client::ALL.len()];
        let mut timeline = Timeline::default();
        let mut live = Live::new(script);
        let mut tick = time::interval(TICK);
        loop {
            tokio::select! {
                answer = told.recv() => match answer {
                    Some((client, answer)) => answers[client as usize].push(answer),
                    None => break Ok((answers, timeline)),
                },
                _ = tick.tick() => {
                    let now = edge::now() - origin;
                    let (state, opened) = look();
                    timeline.note(now, state, opened);
                    live.show(now, &answers, state)?;
                }
            }
        }
    };
    let (answers, breaker) = tokio::select! {
        both = async { tokio::try_join!(drive, watch) } => both?.1,
        error = server.gone() => return Err(error.into()),
    };
    Ok(Run { answers, reached: server.report().await?, breaker })
}

fn introduction(options: &Options) -> String {
    let who = [
        (Client::Bare.name(), plain::BARE.to_owned()),
        (Client::Retries.name(), plain::RETRYING.to_owned()),
        (Client::Standard.name(), format!("{}: {}", stack::NAME, stack::settings())),
        ("server", serving(workers::count(options.rate))),
    ];
    let who: String = who.map(|(name, what)| format!("{name:>9}  {what}\n")).concat();
    format!(
        "One server, three clients, {} requests a second each, {} s, seed {}:\n{who}",
        options.rate, options.seconds, options.seed,
    )
}

/// What the server can do, for the reader of the figures.
fn serving(workers: usize) -> String {
    let spans = [Mood::Healthy, Mood::Failing, Mood::Slow].map(|mood| {
        let (least, most) = mood.span().unwrap_or_default();
        format!("{} {least}-{most} ms", mood.name())
    });
    format!(
        "{workers} workers and a queue for each client, so that none pays for another\n\
         {:>9}  a request takes a worker ({}), whether or not its caller still waits",
        "",
        spans.join(", "),
    )
}
