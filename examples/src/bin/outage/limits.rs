//! Open files: a hanging server holds a socket for every request that waits.

/// Sees that `need` files can be open at once, asking the system for more where it allows that.
pub(crate) fn open_files(need: u64) -> Result<(), String> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        // No limit at all is `None`.
        let short = |limit: Option<u64>| limit.is_some_and(|limit| limit < need);
        if short(maximum) {
            return Err(format!(
                "this rate needs {need} open files and the system allows {}: ask for a lower --rate",
                maximum.unwrap_or(u64::MAX),
            ));
        }
        if short(current) {
            let current = Some(need);
            setrlimit(Resource::Nofile, Rlimit { current, maximum })
                .map_err(|error| format!("cannot have {need} open files: {error}"))?;
        }
    }
    #[cfg(not(unix))]
    let _ = need;
    Ok(())
}
