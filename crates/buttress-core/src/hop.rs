/// Marks requests that one process hands on to another, so that none is handed on twice.
///
/// Two processes that each believe the other to be the one that answers send a request back and forth, until something
/// runs out. What was handed on bears a mark, and whoever finds it answers or refuses, but does not hand it on.
///
/// The mark has to survive the way: for HTTP it is a header (`ForwardedOnce` of `buttress-http`). A process that
/// takes off what it does not know breaks the chain.
///
/// ```
/// use buttress_core::OneHop;
///
/// struct Job { work: String, is_forwarded: bool }
/// struct ByField;
///
/// impl OneHop<Job> for ByField {
///     fn is_marked(&self, job: &Job) -> bool {
///         job.is_forwarded
///     }
///
///     fn mark(&self, job: &mut Job) {
///         job.is_forwarded = true;
///     }
/// }
/// ```
pub trait OneHop<Req> {
    /// Whether the request was handed on to this process.
    fn is_marked(&self, request: &Req) -> bool;

    /// Marks a request that is about to be handed on.
    fn mark(&self, request: &mut Req);
}
