//! In Redis: tasks, each with a connection of its own to one server.

use std::net::SocketAddr;

use buttress_servers::Server;
use futures_util::future::join_all;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpStream,
};

use super::{LUA, WRITERS, assert_fenced, tokens};

/// As much of a client as is asked here.
struct Client(BufStream<TcpStream>);

impl Client {
    async fn connect(addr: SocketAddr) -> Self {
        Self(BufStream::new(TcpStream::connect(addr).await.unwrap()))
    }

    /// The answer: a number or a text. Panics if it is an error.
    async fn ask(&mut self, words: &[&str]) -> String {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.write_all(command.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            ":" | "+" => rest.to_owned(),
            "$" => {
                let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut text).await.unwrap();
                String::from_utf8(text).unwrap().trim_end().to_owned()
            }
            _ => panic!("{line}"),
        }
    }

    /// Writes under a token, if it is let in.
    async fn write(&mut self, token: &str) -> bool {
        // The recipe, and a note of what it has let in.
        let script = format!(
            "local function write() {LUA} end
             local written = write()
             if written == 1 then redis.call('RPUSH', KEYS[3], ARGV[1]) end
             return written"
        );
        let keys = ["3", "{orders}:value", "{orders}:fence", "{orders}:accepted"];
        let words = [&["EVAL", &script][..], &keys, &[token, token]].concat();
        self.ask(&words).await == "1"
    }

    async fn accepted(&mut self) -> Vec<i64> {
        let count: i64 = self.ask(&["LLEN", "{orders}:accepted"]).await.parse().unwrap();
        let mut accepted = Vec::new();
        for nth in 0..count {
            let token = self.ask(&["LINDEX", "{orders}:accepted", &nth.to_string()]).await;
            accepted.push(token.parse().unwrap());
        }
        accepted
    }
}

#[tokio::test]
async fn a_write_of_a_former_leader_changes_nothing_whatever_the_tokens_length() {
    let server = Server::redis().await;
    let mut client = Client::connect(server.addr()).await;
    for (token, is_let_in) in [
        ("9", true),
        ("10", true),
        ("9", false),
        ("10", true),
        // Beyond 2^53, where two numbers of Lua's may be one.
        ("9007199254740993", true),
        ("9007199254740992", false),
        ("18446744073709551615", true),
        ("18446744073709551614", false),
    ] {
        assert_eq!(client.write(token).await, is_let_in, "{token}");
    }
    assert_eq!(client.ask(&["GET", "{orders}:value"]).await, "18446744073709551615");
}

// LDR-02
#[tokio::test(flavor = "multi_thread")]
async fn however_old_and_new_writers_race_what_is_accepted_never_decreases() {
    let server = Server::redis().await;
    let addr = server.addr();
    let writers = (0..WRITERS).map(|writer| {
        tokio::spawn(async move {
            let (mut client, mut refused) = (Client::connect(addr).await, 0);
            for token in tokens(writer) {
                refused += usize::from(!client.write(&token.to_string()).await);
            }
            refused
        })
    });
    let refused = join_all(writers).await.into_iter().map(Result::unwrap).sum();
    assert_fenced(&Client::connect(addr).await.accepted().await, refused);
}
