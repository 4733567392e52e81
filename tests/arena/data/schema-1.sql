BEGIN TRANSACTION;
CREATE TABLE benches (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	submission_id VARCHAR(32) NOT NULL, 
	reason TEXT NOT NULL, 
	after_match INTEGER NOT NULL, 
	benched_at DOUBLE NOT NULL, 
	lifted_at DOUBLE, 
	FOREIGN KEY(submission_id) REFERENCES submissions (id)
);
CREATE TABLE board (
	env_id VARCHAR(200) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	owner_id VARCHAR(32) NOT NULL, 
	algorithm VARCHAR(200) NOT NULL, 
	submission_id VARCHAR(32) NOT NULL, 
	score DOUBLE NOT NULL, 
	low DOUBLE, 
	high DOUBLE, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (env_id, kind, owner_id, algorithm), 
	FOREIGN KEY(owner_id) REFERENCES owners (id), 
	FOREIGN KEY(submission_id) REFERENCES submissions (id)
);
INSERT INTO "board" VALUES('CartPole-v1','verified','fe46d9f842494da7a5fb416f31544bb5','DQN','22cd6bdab7f04069a841bd2073501c62',20.0,10.0,30.0,1000000.0);
CREATE TABLE charges (
	id INTEGER NOT NULL, 
	submission_id VARCHAR(32) NOT NULL, 
	owner_id VARCHAR(32) NOT NULL, 
	day INTEGER NOT NULL, 
	refunded_at DOUBLE, 
	PRIMARY KEY (id), 
	FOREIGN KEY(submission_id) REFERENCES submissions (id), 
	FOREIGN KEY(owner_id) REFERENCES owners (id)
);
INSERT INTO "charges" VALUES(1,'c854dd68c08749d9b050881633c4ddb2','326e112ad25247e5845f13d836aac59c',11,NULL);
INSERT INTO "charges" VALUES(2,'22cd6bdab7f04069a841bd2073501c62','fe46d9f842494da7a5fb416f31544bb5',11,NULL);
INSERT INTO "charges" VALUES(3,'aeafad012ad443da89b007dd03e64d1e','670d73f9c9944a1a82ed0e1986764bd5',11,NULL);
CREATE TABLE environments (
	env_id VARCHAR(200) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	settings TEXT NOT NULL, 
	enabled BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	PRIMARY KEY (env_id)
);
INSERT INTO "environments" VALUES('CartPole-v1','verified','{"episodes":3}',1,1000000.0,1000000.0);
CREATE TABLE evaluations (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	submission_id VARCHAR(32) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	score DOUBLE NOT NULL, 
	low DOUBLE, 
	high DOUBLE, 
	episodes INTEGER NOT NULL, 
	metrics TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	FOREIGN KEY(submission_id) REFERENCES submissions (id)
);
INSERT INTO "evaluations" VALUES(1,'c854dd68c08749d9b050881633c4ddb2','verified',7.0,NULL,NULL,0,'{}',1000000.0);
INSERT INTO "evaluations" VALUES(2,'22cd6bdab7f04069a841bd2073501c62','verified',20.0,10.0,30.0,3,'{"returns":[10.0,20.0,30.0],"steps":[10,20,30],"season":"x","environment":"CartPole-v1","cpu_s":0.1,"wall_s":0.2,"iqm":20.0,"median":20.0,"replays":[]}',1000000.0);
CREATE TABLE events (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	topic VARCHAR(232) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	body TEXT NOT NULL, 
	created_at DOUBLE NOT NULL
);
INSERT INTO "events" VALUES(1,'submission:c854dd68c08749d9b050881633c4ddb2','state','{"id":"c854dd68c08749d9b050881633c4ddb2","state":"received","env_id":"CartPole-v1"}',1000000.0);
INSERT INTO "events" VALUES(2,'submission:c854dd68c08749d9b050881633c4ddb2','state','{"id":"c854dd68c08749d9b050881633c4ddb2","state":"checked","env_id":"CartPole-v1"}',1000000.0);
INSERT INTO "events" VALUES(3,'submission:c854dd68c08749d9b050881633c4ddb2','state','{"id":"c854dd68c08749d9b050881633c4ddb2","state":"queued","env_id":"CartPole-v1"}',1000000.0);
INSERT INTO "events" VALUES(4,'submission:c854dd68c08749d9b050881633c4ddb2','state','{"id":"c854dd68c08749d9b050881633c4ddb2","state":"running","env_id":"CartPole-v1"}',1000000.0);
INSERT INTO "events" VALUES(5,'board:CartPole-v1','board','{"kind":"verified","owner":"old","algorithm":"DQN","score":7.0}',1000000.0);
INSERT INTO "events" VALUES(6,'submission:c854dd68c08749d9b050881633c4ddb2','state','{"id":"c854dd68c08749d9b050881633c4ddb2","state":"ranked","env_id":"CartPole-v1","score":7.0}',1000000.0);
INSERT INTO "events" VALUES(7,'board:CartPole-v1','board','{"score":null}',1000000.0);
INSERT INTO "events" VALUES(8,'submission:22cd6bdab7f04069a841bd2073501c62','state','{"id":"22cd6bdab7f04069a841bd2073501c62","state":"received","env_id":"CartPole-v1"}',1000000.0);
INSERT INTO "events" VALUES(9,'submission:22cd6bdab7f04069a841bd2073501c62','state','{"id":"22cd6bdab7f04069a841bd2073501c62","state":"checked","env_id":"CartPole-v1"}',1000000.0);
INSERT INTO "events" VALUES(10,'submission:22cd6bdab7f04069a841bd2073501c62','state','{"id":"22cd6bdab7f04069a841bd2073501c62","state":"queued","env_id":"CartPole-v1"}',1000000.0);
INSERT INTO "events" VALUES(11,'submission:22cd6bdab7f04069a841bd2073501c62','state','{"id":"22cd6bdab7f04069a841bd2073501c62","state":"running","env_id":"CartPole-v1"}',1000000.0);
INSERT INTO "events" VALUES(12,'board:CartPole-v1','board','{"kind":"verified","owner":"ann","algorithm":"DQN","score":20.0}',1000000.0);
INSERT INTO "events" VALUES(13,'submission:22cd6bdab7f04069a841bd2073501c62','state','{"id":"22cd6bdab7f04069a841bd2073501c62","state":"ranked","env_id":"CartPole-v1","score":20.0}',1000000.0);
INSERT INTO "events" VALUES(14,'submission:aeafad012ad443da89b007dd03e64d1e','state','{"id":"aeafad012ad443da89b007dd03e64d1e","state":"received","env_id":"CartPole-v1"}',1000000.0);
CREATE TABLE jobs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind VARCHAR(32) NOT NULL, 
	payload TEXT NOT NULL, 
	"key" VARCHAR(200), 
	state VARCHAR(16) NOT NULL, 
	priority INTEGER NOT NULL, 
	attempts INTEGER NOT NULL, 
	max_attempts INTEGER NOT NULL, 
	fence INTEGER NOT NULL, 
	worker VARCHAR(200), 
	reason TEXT NOT NULL, 
	run_at DOUBLE NOT NULL, 
	lease_until DOUBLE, 
	created_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	finished_at DOUBLE, 
	UNIQUE ("key")
);
CREATE TABLE keys (
	id VARCHAR(32) NOT NULL, 
	owner_id VARCHAR(32) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	scopes VARCHAR(64) NOT NULL, 
	label VARCHAR(200) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, 
	PRIMARY KEY (id), 
	FOREIGN KEY(owner_id) REFERENCES owners (id)
);
CREATE TABLE matches (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(32) NOT NULL, 
	env_id VARCHAR(200) NOT NULL, 
	season_id INTEGER, 
	seed VARCHAR(20) NOT NULL, 
	rated BOOLEAN NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	tournament_id VARCHAR(32), 
	pairing INTEGER, 
	state VARCHAR(16) NOT NULL, 
	winner INTEGER, 
	reason TEXT NOT NULL, 
	steps INTEGER, 
	wall_s DOUBLE, 
	replay_digest VARCHAR(64), 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	UNIQUE (id), 
	FOREIGN KEY(env_id) REFERENCES environments (env_id), 
	FOREIGN KEY(season_id) REFERENCES seasons (id), 
	FOREIGN KEY(tournament_id) REFERENCES tournaments (id)
);
CREATE TABLE owners (
	id VARCHAR(32) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	per_day INTEGER, 
	at_once INTEGER, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
INSERT INTO "owners" VALUES('326e112ad25247e5845f13d836aac59c','old',NULL,NULL,1000000.0);
INSERT INTO "owners" VALUES('fe46d9f842494da7a5fb416f31544bb5','ann',NULL,NULL,1000000.0);
INSERT INTO "owners" VALUES('670d73f9c9944a1a82ed0e1986764bd5','bob',NULL,NULL,1000000.0);
CREATE TABLE ratings (
	match_number INTEGER NOT NULL, 
	submission_id VARCHAR(32) NOT NULL, 
	mu DOUBLE NOT NULL, 
	sigma DOUBLE NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (match_number, submission_id), 
	FOREIGN KEY(match_number) REFERENCES matches (number), 
	FOREIGN KEY(submission_id) REFERENCES submissions (id)
);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	applied_at DOUBLE NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1,1000000.0);
CREATE TABLE seasons (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	env_id VARCHAR(200) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	secret BLOB NOT NULL, 
	frozen BOOLEAN NOT NULL, 
	started_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	FOREIGN KEY(env_id) REFERENCES environments (env_id)
);
INSERT INTO "seasons" VALUES(1,'CartPole-v1','season 0',X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F',1,1000000.0,1000000.0);
INSERT INTO "seasons" VALUES(2,'CartPole-v1','season 1',X'202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F',0,1000000.0,NULL);
CREATE TABLE seats (
	match_number INTEGER NOT NULL, 
	seat INTEGER NOT NULL, 
	submission_id VARCHAR(32) NOT NULL, 
	score DOUBLE, 
	status VARCHAR(16), 
	reason TEXT, 
	log_digest VARCHAR(64), 
	cpu_s DOUBLE, 
	PRIMARY KEY (match_number, seat), 
	FOREIGN KEY(match_number) REFERENCES matches (number), 
	FOREIGN KEY(submission_id) REFERENCES submissions (id)
);
CREATE TABLE standings (
	season_id INTEGER NOT NULL, 
	board VARCHAR(16) NOT NULL, 
	submission_id VARCHAR(32) NOT NULL, 
	env_id VARCHAR(200) NOT NULL, 
	owner VARCHAR(200) NOT NULL, 
	algorithm VARCHAR(200) NOT NULL, 
	version INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	place INTEGER NOT NULL, 
	score DOUBLE NOT NULL, 
	low DOUBLE, 
	high DOUBLE, 
	games INTEGER NOT NULL, 
	wins INTEGER NOT NULL, 
	draws INTEGER NOT NULL, 
	losses INTEGER NOT NULL, 
	component INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (season_id, board, submission_id), 
	FOREIGN KEY(season_id) REFERENCES seasons (id), 
	FOREIGN KEY(submission_id) REFERENCES submissions (id)
);
CREATE TABLE submissions (
	id VARCHAR(32) NOT NULL, 
	owner_id VARCHAR(32) NOT NULL, 
	env_id VARCHAR(200) NOT NULL, 
	season_id INTEGER, 
	algorithm VARCHAR(200) NOT NULL, 
	client_id VARCHAR(200), 
	anonymous BOOLEAN DEFAULT 0 NOT NULL, 
	main_file VARCHAR(200) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	version INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	warnings TEXT DEFAULT '' NOT NULL, 
	log_digest VARCHAR(64), 
	job_id INTEGER, 
	score DOUBLE, 
	low DOUBLE, 
	high DOUBLE, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	deleted_at DOUBLE, 
	PRIMARY KEY (id), 
	UNIQUE (owner_id, env_id, algorithm, version), 
	FOREIGN KEY(owner_id) REFERENCES owners (id), 
	FOREIGN KEY(env_id) REFERENCES environments (env_id), 
	FOREIGN KEY(season_id) REFERENCES seasons (id)
);
INSERT INTO "submissions" VALUES('c854dd68c08749d9b050881633c4ddb2','326e112ad25247e5845f13d836aac59c','CartPole-v1',1,'DQN',NULL,0,'agent.py','0000000000000000000000000000000000000000000000000000000000000000',1,'verified','ranked','','',NULL,NULL,7.0,NULL,NULL,1000000.0,1000000.0,NULL);
INSERT INTO "submissions" VALUES('22cd6bdab7f04069a841bd2073501c62','fe46d9f842494da7a5fb416f31544bb5','CartPole-v1',2,'DQN',NULL,0,'agent.py','0000000000000000000000000000000000000000000000000000000000000000',1,'verified','ranked','','',NULL,NULL,20.0,10.0,30.0,1000000.0,1000000.0,NULL);
INSERT INTO "submissions" VALUES('aeafad012ad443da89b007dd03e64d1e','670d73f9c9944a1a82ed0e1986764bd5','CartPole-v1',2,'DQN',NULL,0,'agent.py','0000000000000000000000000000000000000000000000000000000000000000',1,'verified','received','','',NULL,NULL,NULL,NULL,NULL,1000000.0,1000000.0,NULL);
CREATE TABLE tournaments (
	id VARCHAR(32) NOT NULL, 
	env_id VARCHAR(200) NOT NULL, 
	season_id INTEGER, 
	name VARCHAR(200) NOT NULL, 
	format VARCHAR(32) NOT NULL, 
	finals BOOLEAN NOT NULL, 
	settings TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	result TEXT, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	PRIMARY KEY (id), 
	FOREIGN KEY(env_id) REFERENCES environments (env_id), 
	FOREIGN KEY(season_id) REFERENCES seasons (id)
);
CREATE INDEX events_of_topic ON events (topic, number);
CREATE INDEX jobs_in_order ON jobs (state, kind, priority DESC, id);
CREATE INDEX jobs_by_end ON jobs (kind, finished_at);
CREATE INDEX ix_keys_owner_id ON keys (owner_id);
CREATE UNIQUE INDEX one_live_season ON seasons (env_id) WHERE ended_at IS NULL;
CREATE INDEX submissions_by_score ON submissions (env_id, kind, owner_id, algorithm, score);
CREATE INDEX submissions_by_client ON submissions (client_id);
CREATE INDEX submissions_by_code ON submissions (digest);
CREATE INDEX submissions_by_owner ON submissions (owner_id, state, created_at);
CREATE INDEX submissions_by_state ON submissions (state, created_at);
CREATE INDEX ix_tournaments_env_id ON tournaments (env_id);
CREATE INDEX charges_of_day ON charges (owner_id, day);
CREATE INDEX ix_charges_submission_id ON charges (submission_id);
CREATE INDEX ix_evaluations_submission_id ON evaluations (submission_id);
CREATE INDEX board_of_algorithm ON board (env_id, kind, algorithm, score DESC, at, submission_id);
CREATE INDEX board_by_score ON board (env_id, kind, score DESC, at, submission_id);
CREATE INDEX board_by_date ON board (env_id, kind, at, submission_id);
CREATE INDEX ix_matches_tournament_id ON matches (tournament_id);
CREATE INDEX matches_in_order ON matches (env_id, state, number);
CREATE INDEX standings_in_order ON standings (season_id, board, place);
CREATE INDEX ix_benches_submission_id ON benches (submission_id);
CREATE INDEX seats_of_submission ON seats (submission_id, match_number);
CREATE INDEX ratings_of_submission ON ratings (submission_id, match_number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('seasons',2);
INSERT INTO "sqlite_sequence" VALUES('events',14);
INSERT INTO "sqlite_sequence" VALUES('evaluations',2);
COMMIT;
