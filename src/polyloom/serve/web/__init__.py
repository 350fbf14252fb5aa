"""HTTP: our own protocol and those that clients already speak.

The way of a request: `middleware` logs it, cancels it if its client disconnects, and limits its body. A route, such as
`native.predict`, checks the key and turns the body into rows. `Context.answer` limits the rows of a key, counts each
row and sends it to the process with the models (`ModelProcess.ask`). There `answer_parent` passes it to
`Engine.answer`, whose bounded queue is where rows wait. Each step awaits the next, so a cancellation reaches them all.
"""
