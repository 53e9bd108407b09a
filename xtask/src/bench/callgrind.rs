//! Runs a program under callgrind, and reads what it writes.
//!
//! callgrind counts every instruction, so that one build counts the same in every run, however busy the
//! machine. Its files say more than a sum: how often each function was called, which is how allocations and
//! copies are counted, and how often each instruction ran, which is how the locked ones are. Clock reads can be
//! counted as well: valgrind hides the page that answers them natively, and each is a call of the C library.

use std::{collections::HashSet, fs, path::Path};

use crate::command::Cmd;

/// What happened between two cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) instructions: u64,
    pub(super) allocations: u64,
    /// Of the program's own, not of the C library's.
    pub(super) locked: u64,
    pub(super) clock_reads: u64,
    pub(super) copies: u64,
    pub(super) timers: u64,
}

/// Runs `program` with the argument `task`. Gives what it printed, and the parts into which the calls of
/// its function `cut` divide the run; what comes after the last of them is in none.
pub(super) fn run(
    program: &Path,
    task: &str,
    cut: &str,
    folder: &Path,
) -> Result<(String, Vec<Part>), String> {
    let said =
        Cmd::new("objdump", "--disassemble --no-show-raw-insn").arg(program.display()).output()?;
    let locked = locked(&String::from_utf8_lossy(&said.stdout));

    // Parts of an earlier run would be read again.
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // Names and addresses in full, where callgrind would write numbers that stand for them.
    let options =
        "--tool=callgrind --quiet --dump-instr=yes --compress-strings=no --compress-pos=no";
    let valgrind = Cmd::new("valgrind", options)
        .arg(format!("--dump-before={cut}*"))
        .arg(format!("--callgrind-out-file={}", folder.join("part").display()))
        .arg(program.display())
        .arg(task);
    let said = valgrind.output()?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr);
        return Err(format!("`{valgrind}` ended with {}: {}", said.status, why.trim()));
    }
    let mut parts = Vec::new();
    while let Ok(text) = fs::read_to_string(folder.join(format!("part.{}", parts.len() + 1))) {
        let part = Part::read(&text, &program.display().to_string(), &locked);
        parts.push(part.ok_or_else(|| format!("callgrind's part {} is no part", parts.len() + 1))?);
    }
    Ok((String::from_utf8_lossy(&said.stdout).into_owned(), parts))
}

/// The addresses of the instructions that lock, in what objdump says: those with the prefix, and exchanges with
/// memory, which need none. Of x86 alone.
fn locked(disassembly: &str) -> HashSet<u64> {
    let lines = disassembly.lines().filter_map(|line| line.trim_start().split_once(":\t"));
    let locking = lines.filter(|(_, code)| {
        code.starts_with("lock ") || code.starts_with("xchg ") && code.contains('(')
    });
    locking.filter_map(|(address, _)| u64::from_str_radix(address, 16).ok()).collect()
}

// === impl Part ===

impl Part {
    /// Reads one file of callgrind's. `None` if it is not one.
    ///
    /// Lines that begin with an address cost: in the function `fn`, or, after `calls`, in one that it called,
    /// which has lines of its own.
    fn read(text: &str, program: &str, locked: &HashSet<u64>) -> Option<Self> {
        let mut part = Self::default();
        let (mut object, mut caller, mut callee) = ("", "", "");
        let mut of_callee = false;
        let mut summary = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("ob=") {
                object = name;
            } else if let Some(name) = line.strip_prefix("fn=") {
                caller = name;
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = name;
            } else if let Some(calls) = line.strip_prefix("calls=") {
                part.called(callee, caller, calls.split(' ').next()?.parse().ok()?);
                of_callee = true;
            } else if let Some(cost) = line.strip_prefix("0x") {
                if !of_callee && object == program {
                    let mut words = cost.split(' ');
                    let address = u64::from_str_radix(words.next()?, 16).ok()?;
                    if locked.contains(&address) {
                        part.locked += words.nth(1)?.parse::<u64>().ok()?;
                    }
                }
                of_callee = false;
            } else if let Some(sum) = line.strip_prefix("summary: ") {
                summary = sum.parse().ok();
            }
        }
        part.instructions = summary?;
        Some(part)
    }

    fn called(&mut self, callee: &str, caller: &str, times: u64) {
        const ALLOCATE: &[&str] =
            &["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign"];
        // The version that a symbol of the C library may carry.
        let plain = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
        let (name, by) = (plain(callee), plain(caller));
        // One that calls another of them is still one.
        let allocates = |name: &str| ALLOCATE.contains(&name);
        if allocates(&name) && !allocates(&by) {
            self.allocations += times;
        } else if name == "clock_gettime" {
            self.clock_reads += times;
        } else if name.contains("memcpy") || name.contains("memmove") {
            self.copies += times;
        } else if name.ends_with("time::handle::Handle>::reregister") {
            self.timers += times;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "/target/drive";

    /// Two functions of the program and two of the C library, as callgrind writes them.
    const FILE: &str = "\
# callgrind format
events: Ir
summary: 700

ob=/target/drive
fl=???
fn=drive::call
0x100 0 10
0x104 0 10
cob=/lib/libc.so.6
cfi=???
cfn=malloc
calls=20 0x9000 0
0x104 0 400
cfn=clock_gettime@@GLIBC_2.17
calls=3 0x9100 0
0x108 0 30
cfn=__memcpy_avx_unaligned_erms
calls=5 0x9200 0
0x10c 0 50
cfn=tokio::runtime::time::<impl tokio::runtime::time::handle::Handle>::reregister
calls=2 0x300 0
0x110 0 20

ob=/lib/libc.so.6
fn=posix_memalign
0x104 0 7
cfn=malloc
calls=9 0x9000 0
0x9300 0 9
";

    #[test]
    fn what_is_known_by_name_is_counted() {
        let part = Part::read(FILE, PROGRAM, &HashSet::new()).unwrap();
        let Part { instructions, allocations, clock_reads, copies, timers, .. } = part;
        assert_eq!((instructions, clock_reads, copies, timers), (700, 3, 5, 2));
        assert_eq!(allocations, 20, "one that allocates by another is counted once");
    }

    #[test]
    fn an_instruction_that_locks_counts_as_often_as_it_ran_in_the_program_itself() {
        let part = Part::read(FILE, PROGRAM, &HashSet::from([0x104])).unwrap();
        assert_eq!(
            part.locked, 10,
            "neither what a call at it cost, nor the library's at this address"
        );
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        assert_eq!(Part::read("", PROGRAM, &HashSet::new()), None);
        assert_eq!(Part::read("summary: many", PROGRAM, &HashSet::new()), None);
    }

    #[test]
    fn the_prefix_locks_and_so_does_an_exchange_with_memory() {
        let disassembly = "
/target/drive:     file format elf64-x86-64

0000000000031b00 <drive::call>:
   31bad:\tlock cmpxchg %ebx,0x18(%r14)
   31bb3:\tjne    31bad <drive::call+0xad>
   3220c:\txchg   %eax,(%rsi)
   3220e:\txchg   %ax,%ax
";
        assert_eq!(locked(disassembly), HashSet::from([0x31bad, 0x3220c]));
    }
}
